"""A server's settings: file < environment < flags, every problem at once, each value's origin.

    loaded = load_server(Path("llmgw.yaml"), os.environ, {"listen": "127.0.0.1:0"})

Reads files and nothing else: no GPU, no network, no running server is needed to check a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from llmgw.config.checks import model_findings, settings_findings
from llmgw.config.documents import Document, Steps, path_text, read_document
from llmgw.config.installed import Installed
from llmgw.config.places import default_state_dir
from llmgw.config.problems import problems_of, unknown_name
from llmgw.config.server import ServerSettings
from llmgw.config.sources import environment_data, flag_data, leaves, merge
from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName
from llmgw.errors import ConfigError, Problem

#: The store of a server that was not told another; its presence means that a catalog may be in it.
STORE_FILE = "llmgw.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Checked settings, with where they came from."""

    settings: ServerSettings  #: `state_dir` filled in, `models` with those of `catalog_dir`
    state_dir: Path
    origins: Mapping[str, str]  #: by path of a value that is not a default
    owners: Mapping[ModelName, str]  #: file that each model came from
    files: tuple[Path, ...]  #: everything that was read
    half_written: tuple[Path, ...] = ()  #: of these, those whose last line has no end

    @property
    def wants_control(self) -> bool | None:
        """Whether the control plane runs; None: only the store's catalog can tell."""
        return _wants_control(self.settings, self.settings.models, self.state_dir)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One catalog entry as written, and where."""

    raw: object
    document: Document | None  #: None: environment
    steps: Steps  #: in its document
    label: str  #: put before its path; "" for the configuration itself


def load_server(
    path: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    installed: Installed | None = None,
    needs_work: bool = True,
) -> Loaded:
    """Read and check everything that one server process is told.

    path: a YAML or TOML file; None: there is none. flags: value by dotted path. installed: None
    skips what only plugins can check. needs_work: nothing to serve is a problem; False for a
    router that gets its endpoints from a server. Raises ConfigError with every problem found.
    """
    installed = installed or Installed()
    document = read_document(path) if path else None
    data: dict[str, object] = {}
    merge(data, document.data if document else {})
    env_data, env_origins, problems = environment_data(env)
    merge(data, env_data)
    said_by_flags, flag_origins = flag_data(flags)
    merge(data, said_by_flags)
    origins = env_origins | flag_origins

    def where(steps: Steps) -> str:
        return _where(steps, origins, document)

    entries = _own_entries(data, document, origins)
    more, folder_problems, folder_files = _catalog_entries(data)
    entries += more
    reported = document.problems if document else ()
    problems = [*reported, *problems, *folder_problems]
    settings = _validated(ServerSettings, data, where, problems)
    sections = _sections(data, installed, where, problems)
    models = _models(entries, data, installed, where, problems)
    problems += [
        Problem(path=path_text(finding.steps), message=finding.message + where(finding.steps))
        for finding in settings_findings(data, installed)
    ]
    state_dir = (settings and settings.state_dir) or default_state_dir(env)
    if needs_work and settings and not problems and not _has_work(settings, models, state_dir):
        problems.append(NOTHING_TO_DO)
    if problems or settings is None:
        raise ConfigError(str(path) if path else "settings", _first_of_each(problems))
    half = document is not None and not document.ends_whole
    return Loaded(
        settings=settings.model_copy(
            update={"state_dir": state_dir, "models": models, "plugins": sections}
        ),
        state_dir=state_dir,
        origins=_origins(data, origins, document),
        owners=_owners(entries, models),
        files=(*([path] if path else []), *(document.path for document in folder_files)),
        half_written=(
            *([document.path] if document and half else []),
            *(one.path for one in folder_files if not one.ends_whole),
        ),
    )


NOTHING_TO_DO = Problem(
    path="",
    message="there is nothing to serve: give a model a profile under `models` (agents then run it), "
    "name running engines under `endpoints` or by --endpoint id=URL=model[,model], "
    'or set control.enabled to "on" to begin with an empty catalog that `llmgw ctl apply` fills',
)


def _has_work(settings: ServerSettings, models: Sequence[Model], state_dir: Path) -> bool:
    return bool(settings.endpoints) or _wants_control(settings, models, state_dir) is not False


def _wants_control(
    settings: ServerSettings, models: Sequence[Model], state_dir: Path
) -> bool | None:
    if settings.control.enabled != "auto":
        return settings.control.enabled == "on"
    if settings.store.url or any(model.profiles for model in models):
        return True
    return None if (state_dir / STORE_FILE).is_file() else False


def _validated(
    kind: type[ServerSettings],
    data: Mapping[str, object],
    where: Callable[[Steps], str],
    problems: list[Problem],
) -> ServerSettings | None:
    # Models and plugins' sections are validated one by one, each with what is known of it.
    rest = {key: value for key, value in data.items() if key not in ("models", "plugins")}
    try:
        return kind.model_validate(rest)
    except ValidationError as error:
        problems += problems_of(error, kind, where)
        return None


def _sections(
    data: Mapping[str, object],
    installed: Installed,
    where: Callable[[Steps], str],
    problems: list[Problem],
) -> dict[str, object]:
    written = data.get("plugins", {})
    if not isinstance(written, Mapping):
        problems.append(Problem(path="plugins", message="must be a mapping of plugin to settings"))
        return {}
    sections: dict[str, object] = {}
    for name in written:
        if name not in installed.sections:
            message = unknown_name(str(name), installed.sections, what="plugin")
            problems.append(
                Problem(path=f"plugins.{name}", message=message + where(("plugins", str(name))))
            )
    for name, kind in installed.sections.items():
        at: Steps = ("plugins", name)
        try:
            sections[name] = kind.model_validate(written.get(name, {}))
        except ValidationError as error:
            if name not in written:
                continue  # it needs settings and has none: left out, its plugin sees no section
            problems += _moved(problems_of(error, kind, _below(at, where)), at)
    return sections


def _models(
    entries: Sequence[_Entry],
    data: Mapping[str, object],
    installed: Installed,
    where: Callable[[Steps], str],
    problems: list[Problem],
) -> tuple[Model, ...]:
    models = []
    for entry in entries:
        try:
            models.append(Model.model_validate(entry.raw))
        except ValidationError as error:
            place = _below(entry.steps, _place_of(entry, where))
            problems += _moved(problems_of(error, Model, place), entry.steps, entry.label)
    for finding in model_findings([entry.raw for entry in entries], data, installed):
        index, *rest = finding.steps
        entry = entries[int(index)]
        steps = (*entry.steps, *rest)
        message = finding.message + _place_of(entry, where)(steps)
        problems.append(Problem(path=entry.label + path_text(steps), message=message))
    return tuple(models)


def _own_entries(
    data: Mapping[str, object], document: Document | None, origins: Mapping[Steps, str]
) -> list[_Entry]:
    written = data.get("models") or ()
    if not isinstance(written, list | tuple):
        return [_Entry(written, document, ("models",), "")]
    from_file = not any(steps[:1] == ("models",) for steps in origins)
    return [
        _Entry(raw, document if from_file else None, ("models", index), "")
        for index, raw in enumerate(written)
    ]


def _catalog_entries(
    data: Mapping[str, object],
) -> tuple[list[_Entry], list[Problem], list[Document]]:
    """Read `catalog_dir`: each file holds `models:` or one entry by itself."""
    folder = data.get("catalog_dir")
    if not isinstance(folder, str | Path):
        return [], [], []
    try:
        files = sorted(
            path
            for path in Path(folder).iterdir()
            if path.suffix in (".yaml", ".yml", ".toml") and not path.name.startswith(".")
        )
    except OSError as error:
        message = f"cannot be listed: {error.strerror}, got {str(folder)!r}"
        return [], [Problem(path="catalog_dir", message=message)], []
    entries: list[_Entry] = []
    problems: list[Problem] = []
    documents: list[Document] = []
    for path in files:
        label = f"{path.name}: "
        try:
            document = read_document(path)
        except ConfigError as error:
            problems += [Problem(path=path.name, message=one.message) for one in error.problems]
            continue
        documents.append(document)
        problems += _moved(document.problems, (), label)
        if "name" in document.data:
            entries.append(_Entry(document.data, document, (), label))
            continue
        problems += [
            Problem(path=label + key, message=unknown_name(key, ["models"], what="key"))
            for key in document.data
            if key != "models"
        ]
        written = document.data.get("models")
        if isinstance(written, list):
            entries += [
                _Entry(raw, document, ("models", index), label) for index, raw in enumerate(written)
            ]
        elif "models" in document.data:
            problems.append(Problem(path=f"{label}models", message="must be a list"))
    return entries, problems, documents


def _where(steps: Steps, origins: Mapping[Steps, str], document: Document | None) -> str:
    """Say where a value came from: a variable or flag before the file, as that is what won."""
    for known, origin in origins.items():
        if known[: len(steps)] == steps:
            return f" (from {origin})" if steps else ""
    return _line(steps, document)


def _line(steps: Steps, document: Document | None) -> str:
    line = document.line(steps) if document else None
    return f" (line {line})" if line else ""


def _place_of(entry: _Entry, where: Callable[[Steps], str]) -> Callable[[Steps], str]:
    if not entry.label:
        return where
    return lambda steps: _line(steps, entry.document)


def _below(at: Steps, where: Callable[[Steps], str]) -> Callable[[Steps], str]:
    return lambda steps: where((*at, *steps))


def _moved(problems: Sequence[Problem], at: Steps, label: str = "") -> list[Problem]:
    """Return problems of a part with the path that they have in the whole."""
    before = path_text(at)

    def path(inner: str) -> str:
        joint = "." if before and inner and not inner.startswith("[") else ""
        return f"{label}{before}{joint}{inner}"

    return [Problem(path=path(problem.path), message=problem.message) for problem in problems]


def _first_of_each(problems: Sequence[Problem]) -> list[Problem]:
    """Drop what merely repeats: one mistake in one place may be seen by two checks."""
    seen: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        seen.setdefault((problem.path, problem.message), problem)
    return list(seen.values())


def _origins(
    data: Mapping[str, object], origins: Mapping[Steps, str], document: Document | None
) -> dict[str, str]:
    found = {}
    for steps, _ in leaves(data):
        if steps in origins:
            found[path_text(steps)] = origins[steps]
        elif document:
            line = document.line(steps)
            found[path_text(steps)] = f"file {document.path}" + (f":{line}" if line else "")
    return found


def _owners(entries: Sequence[_Entry], models: Sequence[Model]) -> dict[ModelName, str]:
    return {
        model.name: str(entry.document.path) if entry.document else "environment"
        for entry, model in zip(entries, models, strict=True)
    }

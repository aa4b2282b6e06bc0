"""Files that people write, read as what they mean and with the line of each value.

YAML is read more strictly than YAML 1.1 has it: what means different things to different
people (`no`, `on`, `08`, one key twice, `${VAR}`) is refused with the way to write it, not
guessed (C066).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from llmgw.errors import ConfigError, Problem

Step = str | int
Steps = tuple[Step, ...]

_SIZE_LIMIT = 8 * 1024 * 1024  # a hundred times the catalog of a large fleet
_BOOLISH = frozenset({"y", "n", "yes", "no", "on", "off"})
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OCTALISH = re.compile(r"[-+]?0[0-9]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


@dataclass(frozen=True, slots=True)
class Document:
    """One file's content: plain mappings, lists, texts, numbers, booleans and None."""

    path: Path
    data: Mapping[str, object]
    lines: Mapping[Steps, int] = field(default_factory=dict)  #: 1 is the first; none for TOML
    problems: tuple[Problem, ...] = ()  #: values that could be read, but must not be used
    ends_whole: bool = True  #: False: the last line has no end, as after half a write

    def line(self, steps: Steps) -> int | None:
        """Return the line of a value, or of what stands around it; None if it is not written."""
        while steps and steps not in self.lines:
            steps = steps[:-1]
        return self.lines.get(steps) if steps else None


def path_text(steps: Steps) -> str:
    """Return `models[1].profiles[0].engine`; "" for the whole file."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def read_document(path: Path) -> Document:
    """Read a YAML or TOML file, told apart by `.toml`.

    Raises ConfigError, with the line where there is one, if it cannot be read as a mapping.
    """
    text = _text_of(path)
    if path.suffix == ".toml":
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _refusal(path, f"is not TOML: {error}") from error
        problems = tuple(_variable_problems((), data))
        return Document(path, data, problems=problems, ends_whole=text.endswith("\n"))
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _refusal(path, _yaml_text(error)) from error
    except yaml.YAMLError as error:
        raise _refusal(path, f"is not YAML: {' '.join(str(error).split())}") from error
    if node is None:
        raise _refusal(path, "is empty")
    if not isinstance(node, yaml.MappingNode):
        raise _refusal(path, "must hold `key: value` lines at its top level", line=_line(node))
    reader = _YamlReader()
    try:
        top = reader.value(node, ())
    except RecursionError as error:
        raise _refusal(path, "is nested too deeply") from error
    assert isinstance(top, dict)  # noqa: S101 # a mapping node gives a dict
    return Document(path, top, reader.lines, tuple(reader.problems), text.endswith("\n"))


class _YamlReader:
    """Turns nodes into plain values, noting lines and what must not be guessed."""

    def __init__(self) -> None:
        self.lines: dict[Steps, int] = {}
        self.problems: list[Problem] = []
        self._nodes = 0

    def value(self, node: yaml.Node, steps: Steps) -> object:
        self.lines[steps] = _line(node)
        self._nodes += 1
        if self._nodes > 200_000:  # aliases of aliases: a small file may be a huge tree
            raise RecursionError
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, steps)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*steps, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 # YAML knows three kinds of node
        return self._scalar(node, steps)

    def _mapping(self, node: yaml.MappingNode, steps: Steps) -> dict[str, object]:
        data: dict[str, object] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong(steps, key_node, "keys must be plain words")
                continue
            key = key_node.value
            if key == "<<" and key_node.style is None:
                self._wrong(steps, key_node, "merge keys (<<) are not read; write the values out")
                continue
            if key in data:
                self._wrong((*steps, key), key_node, f"stands twice, first on line {first[key]}")
                continue
            first[key] = _line(key_node)
            data[key] = self.value(value_node, (*steps, key))
            self.lines[(*steps, key)] = _line(key_node)
        return data

    def _scalar(self, node: yaml.ScalarNode, steps: Steps) -> object:
        text: str = node.value
        for problem in _variable_problems(steps, text):
            self._wrong(steps, node, problem.message)
        if node.tag not in _KNOWN_TAGS:
            self._wrong(steps, node, f"tags such as {node.tag} are not read")
        if node.style is not None:
            return text  # quoted, or a block of text
        lower = text.lower()
        if lower in ("", "~", "null"):
            return None
        if lower in ("true", "false"):
            return lower == "true"
        if lower in _BOOLISH:
            self._wrong(steps, node, f"write true or false, or {text!r} in quotes, not {text}")
        elif _OCTALISH.fullmatch(text):
            plain = text.lstrip("+-0") or "0"
            self._wrong(steps, node, f"write {plain}, or '{text}' in quotes, not {text}")
        elif _INTEGER.fullmatch(text):
            return int(text)
        elif _HEX.fullmatch(text):
            return int(text, 16)
        elif _FLOAT.fullmatch(text) and text != ".":
            return float(text)
        return text

    def _wrong(self, steps: Steps, node: yaml.Node, message: str) -> None:
        self.problems.append(
            Problem(path=path_text(steps), message=f"{message} (line {_line(node)})")
        )


_KNOWN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp")
)


def _variable_problems(steps: Steps, value: object) -> Iterator[Problem]:
    if isinstance(value, str) and (found := _VARIABLE.search(value)):
        yield Problem(
            path=path_text(steps),
            message=f"{found.group()} is not replaced in files; set the value itself, "
            "or leave the key out and set it by an LLMGW_… variable",
        )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _variable_problems((*steps, key), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _variable_problems((*steps, index), item)


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_SIZE_LIMIT + 1)
    except IsADirectoryError as error:
        raise _refusal(path, "is a folder; name the file in it") from error
    except FileNotFoundError as error:
        raise _refusal(path, "there is no such file") from error
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror or error}") from error
    if len(raw) > _SIZE_LIMIT:
        raise _refusal(path, f"is larger than {_SIZE_LIMIT // 1024 // 1024} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _refusal(path, "is not UTF-8 text", line=line) from error
    if not text.strip():
        raise _refusal(path, "is empty")
    return text


def _yaml_text(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    what = error.problem or error.context or "cannot be read"
    if r"'\t'" in what:
        what = "indented by a tab; YAML wants spaces"
    return f"is not YAML: {what}{where}"


def _refusal(path: Path, message: str, *, line: int | None = None) -> ConfigError:
    where = f" (line {line})" if line else ""
    return ConfigError(str(path), [Problem(path="", message=message + where)])


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1

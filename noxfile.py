"""Everything that is done with this repository, one command each.

    nox -s up                 set all up and serve a small real model
    nox -s tests              everything that CI runs
    nox -s lint|types|imports|unit|e2e|docs|wheels|proto     each part by itself
    nox -s observability      alerts, dashboards and metrics, with Prometheus' own tool
    nox -s bench|chaos|ha|engines|clients|hostile|churn|loadtest|simulate
    nox -s pages|soak|scale|placement|browser|schemathesis
                              slow suites, each with its own report

Nothing but Python 3.11+ and pip is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
CORE = "llmgw-core"
DISTRIBUTIONS = (
    CORE,
    "llmgw-agent",
    "llmgw-engine-vllm",
    "llmgw-engine-sglang",
    "llmgw-engine-llamacpp",
)
SOURCES = tuple(f"{name}/src" for name in DISTRIBUTIONS)
TESTS = tuple(f"{name}/tests" for name in DISTRIBUTIONS)
OPENAI_NODE = "openai@7.59.0"
AXE = "axe-core@4.14.1"

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True


def install(session: nox.Session, *, tools: str | None = "tests") -> None:
    """Install all five distributions from this tree, and one group of tools (`requirements/`)."""
    editable = [part for name in DISTRIBUTIONS for part in ("-e", _with_extras(name))]
    chosen = ["-r", f"requirements/{tools}.txt"] if tools else []
    session.install("--disable-pip-version-check", *editable, *chosen)


def _with_extras(name: str) -> str:
    return f"{name}[demo]" if name == "llmgw-engine-llamacpp" else name


@nox.session
def up(session: nox.Session) -> None:
    """Serve a small real model: `nox -s up`, or `nox -s up -- --once` to ask it one question."""
    install(session, tools=None)
    session.run("llmgw", "up", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All of what CI runs, in one environment."""
    install(session)
    _lint(session)
    _imports(session)
    _types(session)
    _proto(session)
    _unit(session)
    _e2e(session)
    _docs(session)
    _wheels(session)


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting and lint rules."""
    session.install("-r", "requirements/lint.txt")
    _lint(session)


@nox.session
def types(session: nox.Session) -> None:
    """Strict types over sources and tests."""
    install(session)
    _types(session)


@nox.session
def imports(session: nox.Session) -> None:
    """The house's import directions."""
    install(session)
    _imports(session)


@nox.session
def unit(session: nox.Session) -> None:
    """Unit tests; positional arguments go to pytest."""
    install(session)
    _unit(session)


@nox.session
def e2e(session: nox.Session) -> None:
    """Real processes, sockets and engines; positional arguments go to pytest."""
    install(session)
    _e2e(session)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation strictly."""
    install(session)
    _docs(session)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build all wheels and sdists; try them alone, together and as a tool."""
    session.install("-r", "requirements/wheels.txt")
    _as_a_tool(session, _wheels(session))


@nox.session
def pages(session: nox.Session) -> None:
    """Type what the documentation says as it stands, on machines of namespaces; as root on Linux."""
    install(session)
    _slow(session, "pages")


@nox.session
def proto(session: nox.Session) -> None:
    """Regenerate the wire code; `-- --check` only compares."""
    install(session)
    if "--check" in session.posargs:
        _proto(session)
    else:
        session.run("python", "llmgw-agent/tests/wire/generate.py")


@nox.session
def clients(session: nox.Session) -> None:
    """Real clients (OpenAI, Anthropic, LangChain, `llm`, Node.js) against a real engine."""
    install(session, tools="clients")
    packages = session.create_tmp()
    if shutil.which("npm"):
        session.run("npm", "install", "--silent", "--prefix", packages, OPENAI_NODE, external=True)
    _slow(session, "clients", env={"NODE_PATH": f"{packages}/node_modules"})


@nox.session
def browser(session: nox.Session) -> None:
    """Every page and flow in a real Chromium (Debian's package `chromium`), axe-core included.

    `LLMGW_SCREENSHOTS=docs/images nox -s browser` takes the documentation's pictures.
    """
    install(session)
    packages = session.create_tmp()
    session.run("npm", "install", "--silent", "--prefix", packages, AXE, external=True)
    axe = f"{packages}/node_modules/axe-core/axe.min.js"
    _slow(session, "browser", env={"LLMGW_AXE": axe})


@nox.session
def bench(session: nox.Session) -> None:
    """The router beside the proxies that are installed, and its limits; arguments are run.py's."""
    install(session, tools=None)
    session.run("make", "-s", "-C", "bench", external=True)
    session.run("python", "bench/run.py", *session.posargs)
    session.run("python", "bench/choosing.py")
    session.run("python", "bench/limits.py")


@nox.session
def schemathesis(session: nox.Session) -> None:
    """Random and odd requests to the admin API, whose document must foresee every answer."""
    install(session, tools="schemathesis")
    tests = f"{CORE}/tests/admin/test_document.py"
    session.run("pytest", "-m", "slow", "--timeout=1200", tests, *session.posargs)


@nox.session
def observability(session: nox.Session) -> None:
    """Alerts, dashboards and the metrics page, by promtool (Debian's package `prometheus`)."""
    install(session)
    tests = f"{CORE}/tests/docs/test_observability.py"
    session.run("pytest", tests, *session.posargs, env={"LLMGW_NEEDS_PROMTOOL": "1"})


@nox.session
def hostile(session: nox.Session) -> None:
    """Malformed requests and slow clients by the thousand; `-- --seed N` for other ones."""
    install(session, tools="slow")
    _slow(session, "hostile")


@nox.session
def engines(session: nox.Session) -> None:
    """Real engines, launched by agents, used through the router; as root, also over two machines.

    vLLM is installed by an agent, some gigabytes, unless LLMGW_VLLM_PYTHON names an interpreter
    that has it. SGLang has no build for CPUs: without LLMGW_SGLANG_PYTHON it is left out.
    """
    install(session, tools="engines")
    _slow(session, "engines")


@nox.session
def churn(session: nox.Session) -> None:
    """Streams by the thousand while engines come and go; `-- --minutes 2` for a short one."""
    install(session, tools="slow")
    _slow(session, "churn")


@nox.session
def ha(session: nox.Session) -> None:
    """Two servers on a real PostgreSQL, two routers, three nodes with llama.cpp, at work."""
    install(session)
    _slow(session, "ha")


@nox.session
def simulate(session: nox.Session) -> None:
    """A hundred seeds of the simulator; `-- --seeds 1 --hours 24 --nodes 1000` for a long one."""
    install(session)
    session.run("python", f"{CORE}/tests/simulate/sweep.py", *session.posargs)


@nox.session
def placement(session: nox.Session) -> None:
    """Placement next to an exact solver on 200 fleets; `-- 20 3`: so many, seconds for each."""
    install(session, tools="placement")
    session.run("python", f"{CORE}/tests/control/quality/against_solver.py", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Every fault of docs/faults.md on real processes, as root: namespaces, mounts, signals.

    Twenty minutes on two cores; LLMGW_CHAOS_KILLS, …_STREAMS and …_LONG_S make it the table's.
    """
    install(session)
    _slow(session, "chaos")


@nox.session
def scale(session: nox.Session) -> None:
    """A thousand agents on one server over real gRPC, then what one agent costs and how quick it is.

    One of the two, with its arguments: `-- sessions --agents 100`, `-- node --seconds 20`.
    """
    install(session)
    chosen, *flags = session.posargs or ("both",)
    if chosen not in ("sessions", "node", "both"):
        session.error("first say which: sessions or node")
    for name in ("sessions", "node"):
        if chosen in (name, "both"):
            session.run("python", f"llmgw-agent/tests/scale/{name}.py", *flags)


@nox.session
def soak(session: nox.Session) -> None:
    """Random faults under load for an hour, or for LLMGW_SOAK_S seconds; then simulated ones.

    `-- simulate` runs the second half alone: a day of a thousand nodes, checked at each step.
    """
    install(session)
    if session.posargs == ["simulate"]:
        _simulate_day(session)
        return
    seconds = os.environ.get("LLMGW_SOAK_S", "3600")
    _slow(session, "chaos/test_soak.py", env={"LLMGW_SOAK_S": seconds})
    _simulate_day(session)


@nox.session
def loadtest(session: nox.Session) -> None:
    """A load test made for engines (aiperf) against `llmgw up`. Installs a gigabyte."""
    install(session, tools="loadtest")
    # dash, which aiperf brings, has a plugin for pytest that a new pytest warns of.
    _slow(session, "loadtest", env={"PYTEST_ADDOPTS": "-p no:dash"})


def _simulate_day(session: nox.Session) -> None:
    size = ("--seeds", "1", "--hours", "24", "--nodes", "1000", "--devices", "8")
    session.run("python", f"{CORE}/tests/simulate/sweep.py", *size)


def _slow(session: nox.Session, suite: str, *, env: dict[str, str] | None = None) -> None:
    folder = f"llmgw-agent/tests/{suite}"
    session.run("pytest", "-m", "slow", "--timeout=1200", folder, *session.posargs, env=env)


def _lint(session: nox.Session) -> None:
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


def _types(session: nox.Session) -> None:
    session.run("mypy", *SOURCES)
    # One run per distribution, from its folder: their tests have files of the same name.
    for name in DISTRIBUTIONS:
        with session.chdir(name):
            session.run("mypy", "--config-file", "../pyproject.toml", "tests")


def _imports(session: nox.Session) -> None:
    session.run("lint-imports", "--config", ".importlinter")


def _proto(session: nox.Session) -> None:
    session.run("python", "llmgw-agent/tests/wire/generate.py", "--check")


def _unit(session: nox.Session) -> None:
    # One process per distribution: the agent's tests share one event loop, because of gRPC, and
    # a test of another's that starts its own could not run beside it.
    for folder in TESTS:
        # The core's are many, and share nothing: as many at a time as there are cores, up to four.
        several = ("-n", "auto", "--maxprocesses=4") if folder.startswith(CORE) else ()
        session.run("pytest", "-m", "not e2e and not slow", *several, folder, *session.posargs)


def _e2e(session: nox.Session) -> None:
    session.run("pytest", "-m", "e2e and not slow", "--timeout=180", *TESTS, *session.posargs)


def _docs(session: nox.Session) -> None:
    session.run("mkdocs", "build", "--strict", "--quiet", "--site-dir", session.create_tmp())


def _wheels(session: nox.Session) -> Path:
    out = Path(session.create_tmp()) / "dist"
    shutil.rmtree(out, ignore_errors=True)
    for name in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--outdir", str(out), name, silent=True)
    built = sorted(str(path) for path in out.iterdir())
    session.run("python", "-m", "twine", "check", "--strict", *built, silent=True)
    by_name = {path.name.split("-")[0].replace("_", "-"): path for path in out.glob("*.whl")}
    for label, chosen in (("core", [CORE]), ("all", list(DISTRIBUTIONS))):
        home = out.parent / f"venv-{label}"
        shutil.rmtree(home, ignore_errors=True)
        session.run(sys.executable, "-m", "venv", str(home), external=True)
        python = str(home / "bin" / "python")
        wheels_of = [str(by_name[name]) for name in chosen]
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        session.run(*pip, "install", "--quiet", *wheels_of, external=True)
        session.run(*pip, "check", external=True)
        session.run(str(home / "bin" / "llmgw"), "plugins", external=True, silent=True)
        if label == "core":
            alone = f"{CORE}/tests/packages/try_core_alone.py"
            session.run(python, alone, external=True, silent=True)
    session.run("python", f"{CORE}/tests/packages/try_plugin_guide.py", str(out), silent=True)
    return out


def _as_a_tool(session: nox.Session, wheels: Path) -> None:
    """Install with uv and with pipx, as docs/install.md says."""
    page = (ROOT / "docs" / "install.md").read_text()
    for line in re.findall(r"^\$ ((?:uv|pipx) .*)$", page, re.MULTILINE):
        home = wheels.parent / line.split()[0]
        shutil.rmtree(home, ignore_errors=True)
        tools, programs = str(home / "tools"), str(home / "bin")
        links = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheels.resolve()}".strip()
        env = {
            "PIPX_HOME": tools,
            "PIPX_BIN_DIR": programs,
            "PIP_FIND_LINKS": links,
            "UV_TOOL_DIR": tools,
            "UV_TOOL_BIN_DIR": programs,
            "UV_FIND_LINKS": str(wheels.resolve()),
        }
        session.run("bash", "-c", line, env=env, external=True, silent=True)
        session.run(str(home / "bin" / "llmgw"), "--version", external=True, silent=True)

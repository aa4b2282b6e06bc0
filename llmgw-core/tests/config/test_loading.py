"""From what people write to settings, or to every problem at once."""
# ruff: noqa: ISC004 - a long line that is expected may be broken in two

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from llmgw.config.installed import Installed
from llmgw.config.loading import Loaded, load_server
from llmgw.config.section import Section
from llmgw.domain.catalog import Profile
from llmgw.errors import ConfigError, Problem

FILES = Path(__file__).parent / "files"


class ConsulSection(Section):
    """Settings that a plugin could have."""

    url: str
    """Where it answers."""
    every: float = 5.0


def toy_problems(profile: Profile) -> tuple[Problem, ...]:
    if "speed" in profile.options:
        return (Problem(path="options.speed", message="is not an option of toy"),)
    return ()


def round_options(options: Mapping[str, object]) -> object:
    if options:
        raise ConfigError("round", [Problem(path=next(iter(options)), message="is not an option")])
    return object()


INSTALLED = Installed(
    engines={"toy": toy_problems},
    weights={"path": lambda ref: None if ref.startswith("path:/") else "must be absolute"},
    balancers={"round": round_options, "least_outstanding": round_options},
    policies=frozenset({"pack"}),
    sections={"consul": ConsulSection},
    failed={"llmgw-engine-vllm": "ImportError: no libcuda"},
)


def load(
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    return load_server(path, env or {"HOME": "/home/op"}, flags or {}, installed=INSTALLED)


def problems(
    tmp_path: Path, text: str, env: Mapping[str, str] | None = None, **flags: object
) -> list[str]:
    """What is said about a file, one line per problem."""
    file = tmp_path / "llmgw.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(file, env, flags)
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize("name", ["good.yaml", "good.toml"])
def test_a_good_file_loads_in_both_languages(name: str) -> None:
    loaded = load(FILES / name)
    assert loaded.settings.models[0].profiles[0].engine == "toy"
    assert loaded.wants_control is True
    assert loaded.files == (FILES / name,)
    assert loaded.state_dir == Path("/home/op/.local/state/llmgw")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("duplicate-keys.yaml", ["models[0].replicas.min: stands twice, first on line 4 (line 4)"]),
        (
            "duplicate-names.yaml",
            [
                "models[1].name: 'tiny' is already a name of model 'tiny'; names are unique (line 5)",
                "models[2].aliases[0]: 'tiny' is already a name of model 'tiny'; "
                "names are unique (line 8)",
            ],
        ),
        ("empty.yaml", ["is empty"]),
        ("only-comment.yaml", ["is empty"]),
        ("half-written.yaml", ["is not YAML: could not find expected ':' (line 5, column 13)"]),
        (
            "tab-indent.yaml",
            ["is not YAML: indented by a tab; YAML wants spaces (line 2, column 1)"],
        ),
        (
            "negative-numbers.yaml",
            [
                "models[0].replicas.min: must be at least 0, got -1 (line 3)",
                "models[0].profiles[0].devices.count: must be a whole number, got 1.5 (line 8)",
                "models[0].profiles[0].start_limit: must be a finite duration of at least 0, "
                "got -5 (line 7)",
            ],
        ),
        (
            "same-port.yaml",
            [
                "admin_listen: 127.0.0.1:8080 is already taken by `listen` (line 3)",
                "endpoints[0].url: is this server's own `listen` (line 5)",
                "endpoints[0].url: is this server's own `admin_listen` (line 5)",
            ],
        ),
        (
            "surprising-types.yaml",
            [
                "models[0].name: write true or false, or 'no' in quotes, not no (line 3)",
                "models[3].name: write 8, or '08' in quotes, not 08 (line 7)",
                "models[0].profiles[0].version: must be text, got 1.1; "
                "put it in quotes as you mean it (line 4)",
                "models[1].name: must be text, got 12000.0; put it in quotes as you mean it (line 5)",
                "models[2].name: must be text, got null (line 6)",
            ],
        ),
        (
            "unknown-key.yaml",
            ["models[0].replica: unknown key 'replica'; did you mean 'replicas'? (line 4)"],
        ),
    ],
)
def test_a_file_that_says_something_else_than_meant_is_refused(name: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(FILES / name)
    assert sorted(str(problem) for problem in raised.value.problems) == sorted(said)
    assert raised.value.source == str(FILES / name)


def test_a_variable_in_a_file_is_never_replaced_in_silence() -> None:
    with pytest.raises(
        ConfigError, match=r"cluster_secret: \$\{LLMGW_CLUSTER_SECRET_THAT_IS_NOT_SET\}"
    ):
        load(FILES / "env-unset.yaml")


@pytest.mark.parametrize("what", ["folder", "missing", "binary", "list"])
def test_what_is_no_configuration_file_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "llmgw.yaml"
    said = {
        "folder": "is a folder; name the file in it",
        "missing": "there is no such file",
        "binary": "is not UTF-8 text (line 2)",
        "list": "must hold `key: value` lines at its top level (line 1)",
    }
    if what == "folder":
        path.mkdir()
    elif what == "binary":
        path.write_bytes(b"models:\n\xff\xfe\n")
    elif what == "list":
        path.write_text("- a\n- b\n")
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert [str(problem) for problem in raised.value.problems] == [said[what]]


def test_a_file_of_aliases_of_aliases_is_refused_and_does_not_fill_the_memory(
    tmp_path: Path,
) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert problems(tmp_path, "\n".join(lines)) == ["is nested too deeply"]


def test_flags_beat_the_environment_which_beats_the_file_which_beats_defaults() -> None:
    env = {"HOME": "/h", "LLMGW_LISTEN": "127.0.0.1:9001", "LLMGW_ADMIN_LISTEN": "127.0.0.1:9002"}
    loaded = load(FILES / "good.yaml", env, {"listen": "127.0.0.1:9003"})
    assert loaded.settings.listen == "127.0.0.1:9003"
    assert loaded.settings.admin_listen == "127.0.0.1:9002"
    assert loaded.settings.router.default_profile == "even"
    assert loaded.origins["listen"] == "flag --listen"
    assert loaded.origins["admin_listen"] == "environment LLMGW_ADMIN_LISTEN"
    assert loaded.origins["router.default_profile"] == f"file {FILES / 'good.yaml'}:3"
    assert "agent_listen" not in loaded.origins


def test_the_environment_reaches_every_depth() -> None:
    env = {
        "LLMGW_CONTROL__INTERVAL": "10s",
        "LLMGW_CONTROL__BASE_BACKOFF": "3",
        "LLMGW_CONTROL__PORT_RANGE": "[21000, 21999]",
        "LLMGW_ROUTER__PROFILES__SLOW__BALANCER": "round",
        "LLMGW_PLUGINS__CONSUL__URL": "http://consul",
        "llmgw_workers": "2",
    }
    settings = load(FILES / "good.yaml", env).settings
    assert settings.control.interval == 10.0
    assert settings.control.base_backoff == 3.0
    assert settings.control.port_range == (21000, 21999)
    assert settings.router.profiles["slow"].balancer == "round"
    assert settings.router.profiles["even"].balancer == "round"
    assert settings.plugins["consul"] == ConsulSection(url="http://consul")
    assert settings.workers == 2


def test_a_misspelt_variable_is_an_error_and_another_parts_is_not(tmp_path: Path) -> None:
    env = {
        "LLMGW_LISTN": "x",
        "LLMGW_CONTROL__INTERVALL": "3",
        "LLMGW_ENDPOINTS": "e1=http://x=m",
        "LLMGW_TOKEN": "secret",
        "LLMGW_AGENT__NODE_ID": "n1",
    }
    assert problems(tmp_path, (FILES / "good.yaml").read_text(), env) == [
        "LLMGW_ENDPOINTS: must be JSON where a list or a mapping is wanted",
        "LLMGW_LISTN: unknown setting 'listn'; did you mean 'listen'?",
        "control.intervall: unknown key 'intervall'; did you mean 'interval'? "
        "(from environment LLMGW_CONTROL__INTERVALL)",
    ]


def test_problems_of_all_sources_and_kinds_come_together(tmp_path: Path) -> None:
    text = """
models:
  - name: tiny
    routing: evn
    profiles:
      - {engine: vlm, weights: "path:/x", devices: {count: -1}}
      - {name: two, engine: toy, weights: "path:x", options: {speed: 9}}
      - {name: three, engine: vllm, weights: "s3:bucket/x"}
router:
  default_profile: leest_outstanding
  profiles: {even: {balancer: rond}, odd: {balancer: round, options: {stride: 2}}}
control: {placement_policy: packk, port_range: [8000, 9000]}
plugins: {consul: {every: soon}, console: {}}
"""
    assert problems(tmp_path, text, {"LLMGW_WORKERS": "0"}) == [
        "workers: must be at least 1, got '0' (from environment LLMGW_WORKERS)",
        "plugins.console: unknown plugin 'console'; did you mean 'consul'? (line 13)",
        "plugins.consul.url: is missing (line 13)",
        "plugins.consul.every: must be a number, got 'soon' (line 13)",
        "models[0].profiles[0].devices.count: must be at least 0, got -1 (line 6)",
        "models[0].routing: unknown routing profile 'evn'; did you mean 'even'? (line 4)",
        "models[0].profiles[0].engine: unknown engine 'vlm'; installed: toy (line 6)",
        "models[0].profiles[1].weights: must be absolute (line 7)",
        "models[0].profiles[1].options.speed: is not an option of toy (line 7)",
        "models[0].profiles[2].engine: engine 'vllm' is not usable: "
        "llmgw-engine-vllm failed: ImportError: no libcuda (line 8)",
        "models[0].profiles[2].weights: unknown source of weights 's3'; known: path (line 8)",
        "listen: port 8080 is in control.port_range 8000-9000 of engines",
        "admin_listen: port 8081 is in control.port_range 8000-9000 of engines",
        "agent_listen: port 8082 is in control.port_range 8000-9000 of engines",
        "router.profiles.even.balancer: unknown balancer 'rond'; did you mean 'round'? (line 11)",
        "router.profiles.odd.options.stride: is not an option (line 11)",
        "router.default_profile: unknown routing profile 'leest_outstanding'; "
        "did you mean 'least_outstanding'? (line 10)",
        "control.placement_policy: unknown placement policy 'packk'; did you mean 'pack'? (line 12)",
    ]


def test_an_engine_of_ours_that_is_not_installed_names_its_package(tmp_path: Path) -> None:
    text = "models: [{name: a, profiles: [{engine: sglang, weights: 'path:/x'}]}]"
    assert problems(tmp_path, text) == [
        "models[0].profiles[0].engine: engine 'sglang' is not installed: "
        "pip install llmgw-engine-sglang; installed: toy (line 1)"
    ]


def test_a_secret_is_never_part_of_a_problem(tmp_path: Path) -> None:
    for text in (
        "cluster_secret: [hunter2]",
        "cluster_secret: {key: hunter2}",
        "cluster_secret: 4711",
        "endpoints: [{id: e, url: 'http://x', models: [m], headers: {X-Key: 4711}}]",
        "endpoints: [{id: e, url: 'ftp://u:hunter2@x', models: [m]}]",
        "endpoints: [{id: e, url: 'http://x/?key=hunter2', models: [m]}]",
        "models: [{name: m, profiles: [{engine: toy, weights: 'path:/x', env: {HF: 4711}}]}]",
    ):
        said = problems(tmp_path, text)
        assert len(said) == 1, said
        assert "hunter2" not in said[0]
        assert "4711" not in said[0]


def test_nothing_to_serve_names_the_ways_out() -> None:
    with pytest.raises(
        ConfigError, match=r"profile under `models`.*--endpoint id=URL=model.*control\.enabled"
    ):
        load()
    with pytest.raises(ConfigError, match="nothing to serve"):
        load(None, None, {"models": [{"name": "no-profile"}]})


def test_a_store_that_is_already_there_may_hold_a_catalog(tmp_path: Path) -> None:
    (tmp_path / "llmgw.db").touch()
    assert load(None, None, {"state_dir": str(tmp_path)}).wants_control is None


@pytest.mark.parametrize(("enabled", "wants"), [("on", True), ("off", False), ("auto", False)])
def test_the_control_plane_runs_where_it_is_wanted(enabled: str, wants: bool) -> None:
    endpoints = [{"id": "e1", "url": "http://127.0.0.1:9/", "models": [" m ", "n"]}]
    loaded = load(None, None, {"endpoints": endpoints, "control.enabled": enabled})
    assert loaded.wants_control is wants
    (endpoint,) = loaded.settings.endpoints
    assert (endpoint.url, endpoint.models) == ("http://127.0.0.1:9", ("m", "n"))


@pytest.mark.parametrize(
    ("address", "extra", "said"),
    [
        ("127.0.0.1:80", {}, []),
        ("[::1]:80", {}, []),
        ("localhost:80", {}, []),
        ("0.0.0.0:80", {"auth": {"insecure_bind": True}}, []),
        ("0.0.0.0:80", {}, ["listen: 0.0.0.0:80 can be reached from other machines without TLS"]),
        ("[::]:80", {}, ["listen: [::]:80 can be reached from other machines without TLS"]),
        ("gpu-01:80", {}, ["listen: gpu-01:80 can be reached from other machines without TLS"]),
        (
            "10.0.0.1:80",
            {"auth": {"api_keys": "off"}},
            ["listen: 10.0.0.1:80 can be", "auth.api_keys: off would let anybody"],
        ),
        ("::1:80", {}, ["listen: must be HOST:PORT"]),
        (":80", {}, ["listen: must be HOST:PORT"]),
        ("127.0.0.1:http", {}, ["listen: must be HOST:PORT"]),
        ("127.0.0.1:70000", {}, ["listen: must have a port from 0 to 65535"]),
    ],
)
def test_an_address_off_this_machine_needs_tls_and_keys(
    address: str, extra: dict[str, object], said: list[str]
) -> None:
    flags = {
        "endpoints": [{"id": "e", "url": "http://x", "models": ["m"]}],
        "listen": address,
        **extra,
    }
    found: list[str] = []
    try:
        load(None, None, flags)
    except ConfigError as error:
        found = [str(problem) for problem in error.problems]
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True)), found


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x", "must be an http or https URL"),
        ("http://", "must be an http or https URL"),
        ("http://user:hunter2@x", "must not hold a user or password"),
        ("http://x/v1/", "must leave out /v1"),
        ("http://x?a=1", "must end with its path"),
        ("http://x:port", "Port could not be cast"),
        ("http://движок:8000", "must have its host as xn--"),
        ("http://a..b:8000", "has a host that no name server knows"),
    ],
)
def test_an_endpoint_url_is_a_base_url(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        load(None, None, {"endpoints": [{"id": "e", "url": url, "models": ["m"]}]})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"headers": {"x-a": "hunter2\r\nhost: other"}}, "must have values of one line"),
        ({"headers": {"x-a": "hunter2 é"}}, "must have values of one line"),
        ({"headers": {"x-a:": "hunter2"}}, "must have names of letters"),
        ({"headers": {"Host": "hunter2"}}, "must leave out 'Host'"),
        ({"id": "e\n"}, "must be one line of text"),
        ({"pool": "a\nb"}, "must be one line of text"),
        ({"health_path": "health"}, "must be a path"),
        ({"health_path": "/a b"}, "must be a path"),
        ({"health_path": "/здоровье"}, "must be a path"),
    ],
)
def test_what_goes_into_heads_cannot_end_them(setting: dict[str, object], said: str) -> None:
    endpoint = {"id": "e", "url": "http://x", "models": ["m"], **setting}
    with pytest.raises(ConfigError, match=said) as raised:
        load(None, None, {"endpoints": [endpoint]})
    assert "hunter2" not in str(raised.value)


def test_a_catalog_folder_adds_models_and_each_file_owns_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "catalog"
    folder.mkdir()
    (folder / "one.yaml").write_text("name: one\nprofiles: [{engine: toy, weights: 'path:/a'}]\n")
    (folder / "more.yaml").write_text("models:\n  - {name: two}\n  - {name: three}\n")
    (folder / ".swap.yaml").write_text("not: read\n")
    loaded = load(FILES / "good.yaml", None, {"catalog_dir": str(folder)})
    assert [model.name for model in loaded.settings.models] == ["tiny", "two", "three", "one"]
    assert loaded.owners["two"] == str(folder / "more.yaml")  # type: ignore[index] # a literal name
    assert loaded.files == (FILES / "good.yaml", folder / "more.yaml", folder / "one.yaml")


def test_problems_in_a_catalog_folder_name_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "catalog"
    folder.mkdir()
    (folder / "a.yaml").write_text("name: tiny\nreplica: 2\n")
    (folder / "b.yaml").write_text("model:\n  - {name: x}\n")
    (folder / "c.yaml").write_text("")
    (folder / "d.yaml").write_text("models:\n  - {name: '-x'}\n")
    with pytest.raises(ConfigError) as raised:
        load(FILES / "good.yaml", None, {"catalog_dir": str(folder)})
    assert [str(problem) for problem in raised.value.problems] == [
        "b.yaml: model: unknown key 'model'; did you mean 'models'?",
        "c.yaml: is empty",
        "a.yaml: replica: unknown key 'replica'; did you mean 'replicas'? (line 2)",
        "d.yaml: models[0].name: must be 1 to 255 letters, digits or '._:/@+-', "
        "the first a letter or digit, got '-x' (line 2)",
        "a.yaml: name: 'tiny' is already a name of model 'tiny'; names are unique (line 1)",
    ]


def test_a_file_whose_last_line_has_no_end_is_noted(tmp_path: Path) -> None:
    """A reload waits for such a file; a start takes it."""
    file = tmp_path / "llmgw.yaml"
    file.write_text((FILES / "good.yaml").read_text().rstrip("\n"))
    assert load(file).half_written == (file,)
    assert load(FILES / "good.yaml").half_written == ()

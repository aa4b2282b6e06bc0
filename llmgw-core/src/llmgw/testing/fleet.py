"""Several servers, routers and agents as real processes on loopback, with engines that cost little.

For tests of whole-cluster faults: each process can be killed, stopped, started again at the same
addresses, run under another clock or in a network namespace. Its engine is the fake one.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from llmgw.testing.site import Running, free_port, wait_for

TOKEN = "llmgw_admin_" + "t" * 43
_SECRET = "s" * 43
_PLUGIN = """\
from llmgw import hookimpl
from llmgw.testing.fake_adapter import FakeEngineAdapter

@hookimpl
def llmgw_engine_adapters():
    return [FakeEngineAdapter()]
"""


class Member:
    """One process of the fleet, which can be started again as it was."""

    def __init__(
        self, fleet: Fleet, name: str, arguments: Sequence[str], *, prefix: Sequence[str] = ()
    ) -> None:
        """prefix: a program that becomes the process, such as `ip netns exec NAME`."""
        self.name = name
        self.env: dict[str, str] = {}
        self.prefix = tuple(prefix)
        self._fleet = fleet
        self._arguments = list(arguments)
        self.running: Running | None = None

    @property
    def pid(self) -> int:
        assert self.running is not None
        return self.running.process.pid

    @property
    def text(self) -> str:
        """All that it has printed, in all its lives."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    @property
    def _output(self) -> Path:
        return self._fleet.home / f"{self.name}.log"

    def start(self) -> None:
        env = {**self._fleet.env, **self.env}
        self.running = Running(self._arguments, self._output, env, prefix=self.prefix)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        assert self.running is not None
        self.running.kill()
        self.running.close()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM; SIGKILL if that does not end it in time."""
        if self.running is not None:
            if self.running.process.poll() is None:
                self.thaw()
            self.running.close()
            self.running = None


class Server(Member):
    """A server with a control plane, and clients of its admin listener."""

    def __init__(
        self, fleet: Fleet, name: str, *, host: str, prefix: Sequence[str], document: dict[str, Any]
    ) -> None:
        self.host = host
        self.state_dir = fleet.home / name
        self.api_port, self.admin_port, self.agent_port = free_port(), free_port(), free_port()
        # Of one name on all servers, since the name of its file is what owns a model.
        self.config = fleet.home / f"{name}.d" / "llmgw.yaml"
        self.config.parent.mkdir()
        self.write(document)
        arguments = ["server", "--config", str(self.config), "--state-dir", str(self.state_dir)]
        # Clients are on the same machine; only agents may come from a namespace of their own.
        arguments += ["--listen", f"127.0.0.1:{self.api_port}"]
        arguments += ["--admin-listen", f"127.0.0.1:{self.admin_port}"]
        arguments += ["--agent-listen", f"{host}:{self.agent_port}"]
        super().__init__(fleet, name, arguments, prefix=prefix)

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace its configuration, which takes effect at a start or at SIGHUP."""
        # JSON is YAML; a last line without an end would be taken for half a file.
        self.config.write_text(json.dumps(document) + "\n")

    def serve_models(self, models: Sequence[Mapping[str, Any]]) -> None:
        """Put these models into its configuration file, and have it read."""
        self.write({**json.loads(self.config.read_text()), "models": list(models)})
        os.kill(self.pid, signal.SIGHUP)

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def target(self) -> tuple[str, int]:
        return "127.0.0.1", self.api_port

    def get(self, path: str, limit_s: float = 10.0) -> Any:
        """Return an admin reply. Raises httpx.HTTPError, also for a status of 4xx or 5xx."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        reply = httpx.get(
            f"{self.admin_url}/admin/v1{path}", headers=headers, trust_env=False, timeout=limit_s
        )
        reply.raise_for_status()
        return reply.json()

    def send(self, method: str, path: str, body: object = None, limit_s: float = 15.0) -> Any:
        """Return the reply of a request that changes something, whatever its status."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        url = f"{self.admin_url}/admin/v1{path}"
        return httpx.request(
            method, url, json=body, headers=headers, trust_env=False, timeout=limit_s
        )

    def join_token(self) -> str:
        """Make a token that any number of machines may join with."""
        made = self.send("POST", "/join-tokens", {"uses": None})
        made.raise_for_status()
        return str(made.json()["secret"])

    def peek(self, path: str) -> Any:
        """As `get`; None while it does not answer."""
        try:
            return self.get(path, 2.0)
        except httpx.HTTPError:
            return None

    def leads(self) -> bool:
        status = self.peek("/status")
        return bool(status and status["leadership"] and status["leadership"]["here"])

    def epoch(self) -> int:
        found = self.get("/status")["leadership"]["epoch"]
        assert isinstance(found, int)
        return found

    def node(self, node: str) -> dict[str, Any] | None:
        """One node in one line; None where it is not known, or nothing answers."""
        reply = self.peek("/nodes") or {"nodes": ()}
        return next((item for item in reply["nodes"] if item["id"] == node), None)

    def node_state(self, node: str) -> str:
        found = self.node(node)
        return str(found["state"]) if found else ""

    def shards(self) -> dict[str, dict[str, Any]]:
        """Every shard that its fleet reports, by id."""
        reply = self.peek("/replicas") or {"replicas": ()}
        return {shard["id"]: shard for item in reply["replicas"] for shard in item["shards"]}

    def restarts(self, shard: str) -> int:
        """How often it was started again; 0 as well where nothing answers in time."""
        return int(self.shards().get(shard, {}).get("restarts", 0))

    def usable(self, model: str) -> set[str]:
        """Replicas of a model that the router of this server sends requests to."""
        found = (self.peek("/endpoints") or {"endpoints": ()})["endpoints"]
        good = [item for item in found if item["state"] in ("healthy", "slow_start")]
        return {str(item["replica"]) for item in good if model in item["models"]}

    def ready(self) -> dict[str, int]:
        """Pids of the shards that are ready, by id."""
        return {
            name: item["pid"] for name, item in self.shards().items() if item["state"] == "ready"
        }


class Fleet:
    """A cluster in one folder."""

    def __init__(self, home: Path, *, store_url: str | None = None) -> None:
        self.home = home
        self._store_url = store_url
        # So that the engines of several fleets on one machine do not meet.
        first = 20000 + 50 * secrets.randbelow(200)
        self._ports = (first, first + 49)
        self._members: list[Member] = []
        self._made = 0  #: servers, those included that a test has dropped
        self.servers: list[Server] = []
        self.routers: list[Router] = []
        self.agents: list[Agent] = []
        self.weights = home / "weights" / "w.gguf"
        self.weights.parent.mkdir()
        self.weights.write_bytes(b"GGUF")
        (home / "admin.token").write_text(TOKEN)
        plugin = home / "plugin"
        (plugin / "llmgw_fake-0.dist-info").mkdir(parents=True)
        (plugin / "llmgw_fake.py").write_text(_PLUGIN)
        info = plugin / "llmgw_fake-0.dist-info"
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llmgw-fake\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[llmgw]\nfake = llmgw_fake\n")
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")},
            "XDG_STATE_HOME": str(home / "xdg"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(plugin), os.environ.get("PYTHONPATH")])
            ),
            "GRPC_VERBOSITY": "NONE",
        }

    def model(self, name: str, *, replicas: int = 1, **fields: Any) -> dict[str, Any]:
        """A catalog entry; fields beyond those of a profile are the engine's options."""
        profile: dict[str, Any] = {"engine": "fake", "weights": f"path:{self.weights}"}
        profile |= {key: fields.pop(key) for key in ("labels", "pool", "env") if key in fields}
        profile["options"] = fields
        scale = {"min": replicas, "max": replicas}
        return {"name": name, "replicas": scale, "profiles": [profile]}

    def server(
        self,
        models: Sequence[dict[str, Any]],
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        control: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Server:
        document: dict[str, Any] = {
            "models": list(models),
            "control": {
                "enabled": "on",
                "port_range": self._ports,
                **(control or {}),
            },
            "auth": {"admin_token_file": str(self.home / "admin.token"), "api_keys": "off"},
            "cluster_secret": _SECRET,
            **settings,
        }
        if self._store_url:
            document["store"] = {"url": self._store_url}
        made = Server(self, f"server-{self._made}", host=host, prefix=prefix, document=document)
        self._made += 1
        self.servers.append(made)
        self._members.append(made)
        made.start()
        wait_for(
            f"{made.name} answers\n{made.text[-2000:]}",
            lambda: made.peek("/status") is not None and (made.state_dir / "join.token").is_file(),
            60,
        )
        return made

    def router(self, *flags: str, host: str = "127.0.0.1") -> Router:
        made = Router(self, f"router-{len(self.routers)}", host, flags)
        self.routers.append(made)
        self._members.append(made)
        made.start()
        return made

    def agent(self, *flags: str, prefix: Sequence[str] = (), env: Mapping[str, str] = {}) -> Agent:
        made = Agent(self, f"node-{len(self.agents)}", flags, prefix)
        made.env.update(env)
        self.agents.append(made)
        self._members.append(made)
        made.start()
        return made

    def leader(self, limit_s: float = 40.0) -> Server:
        """Return the server that leads, once one does."""
        return wait_for(
            "a server leads", lambda: next((s for s in self.servers if s.leads()), None), limit_s
        )

    def ctl(self, *arguments: str, server: Server | None = None) -> Any:
        """Return the parsed `--json` output of a ctl command that succeeds."""
        done = self.try_ctl(*arguments, "--json", server=server)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def try_ctl(
        self, *arguments: str, server: Server | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one ctl command against a server, the leader unless named."""
        url, token = (server or self.leader()).admin_url, str(self.home / "admin.token")
        command = [sys.executable, "-m", "llmgw", "ctl", "--server", url, "--token-file", token]
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=60,
            check=False,
        )

    def wait_ready(self, count: int, limit_s: float = 60.0) -> dict[str, int]:
        """Return the pids of engines once `count` of them are ready on the leader."""

        def look() -> dict[str, int] | None:
            leader = next((s for s in self.servers if s.leads()), None)
            ready = leader.ready() if leader else {}
            return ready if len(ready) >= count else None

        return wait_for(f"{count} engines are ready", look, limit_s)

    def close(self) -> None:
        """End every process, engines included."""
        for member in reversed(self._members):
            if not isinstance(member, Agent):
                member.stop()
        for agent in self.agents:
            agent.stop()
            agent.sweep()


class Router(Member):
    """A router alone, fed by every server that there is when it is made."""

    def __init__(self, fleet: Fleet, name: str, host: str, flags: Sequence[str]) -> None:
        self.api_port, self.admin_port = free_port(), free_port()
        self.host = host
        arguments = ["router", *flags, "--token-file", str(fleet.home / "admin.token")]
        arguments += ["--state-dir", str(fleet.home / name)]
        for server in fleet.servers:
            arguments += ["--server", server.admin_url]
        arguments += ["--listen", f"{host}:{self.api_port}"]
        arguments += ["--admin-listen", f"127.0.0.1:{self.admin_port}"]
        super().__init__(fleet, name, arguments)

    @property
    def target(self) -> tuple[str, int]:
        return self.host, self.api_port

    def serves(self, model: str) -> bool:
        return ask(self.target, model).status_code == httpx.codes.OK


class Agent(Member):
    """The agent of a node; its engines live on when it ends."""

    def __init__(
        self, fleet: Fleet, name: str, flags: Sequence[str], prefix: Sequence[str]
    ) -> None:
        self.state_dir = fleet.home / f"agent-{name}"
        servers = [f"{server.host}:{server.agent_port}" for server in fleet.servers]
        arguments = ["agent", "--node-id", name]
        if "--server" not in flags:  # that of another address, where the node sees it so
            arguments += ["--server", ",".join(servers)]
        arguments += ["--state-dir", str(self.state_dir)]
        arguments += ["--weights-root", str(fleet.weights.parent)]
        if "--join" not in flags:  # the local token is good on the server's own machine
            arguments += ["--join", f"@{fleet.servers[0].state_dir / 'join.token'}"]
        arguments += flags
        super().__init__(fleet, name, arguments, prefix=prefix)

    def status(self) -> dict[str, Any]:
        """What it wrote of itself last; {} where it has written nothing."""
        try:
            found: dict[str, Any] = json.loads((self.state_dir / "status.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found

    def tree(self) -> list[int]:
        """Pids of every process that carries this agent's cookie."""
        try:
            mark = f"LLMGW_REPLICA={(self.state_dir / 'uid').read_text().strip()}/".encode()
        except OSError:
            return []
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def sweep(self) -> None:
        """Kill what it has left running."""
        for pid in self.tree():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def ask(
    target: tuple[str, int],
    model: str,
    *,
    max_tokens: int = 1,
    limit_s: float = 30.0,
    **fields: Any,
) -> httpx.Response:
    """Ask for one plain answer; a connection that fails is told as status 599."""
    body = {"model": model, "max_tokens": max_tokens, **fields}
    body.setdefault("messages", [{"role": "user", "content": "hello"}])
    url = f"http://{target[0]}:{target[1]}/v1/chat/completions"
    try:
        return httpx.post(url, json=body, trust_env=False, timeout=limit_s)
    except httpx.HTTPError as error:
        return httpx.Response(599, text=f"{type(error).__name__}: {error}")

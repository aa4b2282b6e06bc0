"""Has keys made and certificates read. A shell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from llmgw.contracts.join import JoinToken
from llmgw.domain.ids import NodeId
from llmgw.errors import LlmgwError, PermanentError, TransientError
from llmgw_agent.node.minting.papers import (
    AskFacts,
    AskJoin,
    AskRenew,
    Facts,
    JoinPapers,
    RenewPapers,
)
from llmgw_agent.wire.addresses import TcpAddress

T = TypeVar("T")

_PROGRAM = "llmgw_agent.node.minting.work"
_LIMIT_S = 30.0  # a server that does not answer takes ten of them

#: Exit codes of the program, which then prints a sentence; any other one is a failure of its own.
TRANSIENT, PERMANENT, UNREADABLE = 75, 77, 65
_ERRORS: dict[int, type[LlmgwError | ValueError]] = {
    TRANSIENT: TransientError,
    PERMANENT: PermanentError,
    UNREADABLE: ValueError,
}


def ask_apart(verb: str, question: bytes, *, python: str = sys.executable) -> bytes:
    """Return the answer of a process that ends with it. Secrets go through pipes alone.

    Raises TransientError, PermanentError or ValueError as `work.answer` does, TransientError too
    where no process can be had.
    """
    command = [python, "-P", "-m", _PROGRAM, verb]
    try:
        done = subprocess.run(
            command, input=question, capture_output=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransientError(f"no certificate can be made or read now: {error}") from None
    if done.returncode == 0:
        return done.stdout
    if (kind := _ERRORS.get(done.returncode)) is not None:
        raise kind(done.stdout.decode(errors="replace"))
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    raise TransientError(
        f"no certificate can be made or read now: {last or f'exit code {done.returncode}'}"
    )


class Mint:
    """Makes keys and reads certificates. All methods block, on others for seconds."""

    def __init__(self, ask: Callable[[str, bytes], bytes] = ask_apart) -> None:
        """ask: (verb, question) -> answer; `work.answer` itself where the library may be here."""
        self._ask = ask

    def join(self, server: TcpAddress, token: JoinToken, node: NodeId) -> JoinPapers:
        """Return what proves the token to the server that it names.

        Raises TransientError if there is no server, PermanentError if it is another cluster's.
        """
        question = AskJoin(
            host=server.host,
            port=server.port,
            node=node,
            token_id=token.id,
            secret=token.secret.reveal(),
            pin=token.pin,
        )
        return self._answer("join", question, JoinPapers)

    def renew(self, node: NodeId) -> RenewPapers:
        """Return a new key and its request. Raises TransientError."""
        return self._answer("renew", AskRenew(node=node), RenewPapers)

    def facts(self, *, key: str, chain: str, authorities: str) -> Facts:
        """Return what an identity says of itself. All PEM.

        Raises ValueError if the certificate cannot be read or is for another key, TransientError.
        """
        question = AskFacts(key=key, chain=chain, authorities=authorities)
        return self._answer("facts", question, Facts)

    def _answer(self, verb: str, question: object, kind: type[T]) -> T:
        answer = self._ask(verb, msgspec.json.encode(question))
        return msgspec.json.decode(answer, type=kind)

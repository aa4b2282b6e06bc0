"""The digest of the authorities in force, and a store that is away for a while."""

from __future__ import annotations

import anyio

from llmgw.clock import SystemClock
from llmgw.contracts.trust import ServerIdentity
from llmgw.errors import StoreUnavailable
from llmgw.testing.trust import Authority, InMemoryTrust
from llmgw_agent.hub.authorities import AuthorityWatch
from llmgw_agent.wire.authorities import authorities_digest


class Flaky(InMemoryTrust):
    """Answers, or not."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.asked = 0

    def server_identity(self) -> ServerIdentity:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable("the database does not answer")
        return super().server_identity()


def test_join_tokens_do_not_change_the_digest() -> None:
    trust = InMemoryTrust()
    before = authorities_digest(trust.server_identity().client_roots)
    trust.new_token()
    assert authorities_digest(trust.server_identity().client_roots) == before


def test_the_set_and_the_issuing_one_change_the_digest() -> None:
    one, two = Authority().pem, Authority().pem
    digests = {authorities_digest(bundle) for bundle in (b"", one, two, one + two, two + one)}
    assert len(digests) == 5


async def test_the_last_digest_stays_while_the_store_is_away() -> None:
    trust = Flaky()
    watch = AuthorityWatch(trust, SystemClock(), every_s=0.01)
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: watch.run(task_status=task_status))
        before = watch.digest
        trust.is_away = True
        await _until_asked_again(trust)
        assert watch.digest == before != ""
        trust.add_authority()
        trust.is_away = False
        with anyio.fail_after(5):
            while watch.digest == before:  # noqa: ASYNC110 # a reading tells nobody
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def _until_asked_again(trust: Flaky) -> None:
    seen = trust.asked
    with anyio.fail_after(5):
        while trust.asked < seen + 3:  # noqa: ASYNC110 # likewise
            await anyio.sleep(0.01)

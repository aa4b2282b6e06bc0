"""API keys and admin tokens: shown once, kept as hashes, ended for good."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from llmgw.domain.ids import ModelName
from llmgw.domain.keys import KeyLimits, Scope
from llmgw.errors import RequestError
from llmgw.store import Store
from llmgw.store.database import connect, parse_url
from llmgw.store.schema import api_keys, metadata
from llmgw.store.secrets import hash_secret, matches, split_secret
from llmgw.store.tokens import Role
from llmgw.testing.clock import FakeClock


def test_a_keys_text_is_found_by_id_and_matches_its_hash(store: Store) -> None:
    limits = KeyLimits(requests_per_minute=5, tokens_per_day=7)
    made, text = store.keys.create("ci", who="ada", models=(ModelName("a"),), limits=limits)
    assert text.reveal().startswith(f"llmgw_{made.key.id}_")
    parts = split_secret("llmgw", text.reveal())
    assert parts is not None
    (kept,) = store.keys.list()
    assert kept == made
    assert parts[0] == kept.key.id
    assert matches(parts[1], kept.key.secret_hash)
    assert not matches(parts[1] + "x", kept.key.secret_hash)
    assert not matches(parts[1], None)


def test_no_secret_is_anywhere_in_the_database(store: Store) -> None:
    _, key = store.keys.create("ci", who="ada")
    _, token = store.tokens.create("ops", Role.VIEWER, who="ada")
    _, join = store.trust.create_token(who="ada")
    secrets = [text.reveal().split("_", 2)[2] for text in (key, token)] + [join.secret.reveal()]

    def everything(connection: sa.Connection) -> str:
        return repr([connection.execute(sa.select(t)).all() for t in metadata.sorted_tables])

    dump = store.keys._database.read(everything)
    assert not [secret for secret in secrets if secret in dump]


def test_a_key_ends_when_its_time_is_over(store: Store, clock: FakeClock) -> None:
    made, _ = store.keys.create("ci", who="ada", lifetime_s=60)
    assert made.usable(clock.wall())
    assert not made.usable(clock.wall() + 60)


def test_a_revoked_key_stays_listed_with_the_time_of_its_first_end(
    store: Store, clock: FakeClock
) -> None:
    made, _ = store.keys.create("ci", who="ada")
    ended = store.keys.revoke(made.key.id).revoked_at
    clock.jump_wall(100)
    assert store.keys.revoke(made.key.id).revoked_at == ended
    assert [key.usable(clock.wall()) for key in store.keys.list()] == [False]


def test_what_a_key_may_use_can_be_changed_later(store: Store) -> None:
    made, _ = store.keys.create("ci", who="ada", models=(ModelName("a"),))
    limits = KeyLimits(concurrent_requests=2)
    before, after = store.keys.change(made.key.id, models=None, limits=limits)
    assert (before, after) == (made, *store.keys.list())
    assert (after.key.models, after.key.limits) == (None, limits)


def test_routers_get_the_keys_that_are_in_force(store: Store, clock: FakeClock) -> None:
    kept, _ = store.keys.create("kept", who="ada")
    ended, _ = store.keys.create("ended", who="ada")
    store.keys.create("over", who="ada", lifetime_s=60)
    store.keys.revoke(ended.key.id)
    clock.jump_wall(60)
    assert store.keys.valid() == (kept.key,)


def test_roles_include_those_below_them() -> None:
    assert Role.ADMIN.rank > Role.OPERATOR.rank > Role.VIEWER.rank


@pytest.mark.parametrize("kind", ["keys", "tokens"])
def test_ending_what_is_not_there_says_so(store: Store, kind: str) -> None:
    with pytest.raises(RequestError, match="there is no") as caught:
        getattr(store, kind).revoke("nothing")
    assert caught.value.status == 404


@pytest.mark.parametrize("odd", ["é", "\udce9", "“quoted”", "", "x" * 100_000])
def test_odd_texts_are_compared_not_choked_on(odd: str) -> None:
    """C060: the constant-time comparison of texts raises outside ASCII; ours compares digests."""
    assert not matches(odd, hash_secret("right"))
    assert matches(odd, hash_secret(odd))


def test_a_key_with_a_limit_that_only_a_newer_server_knows_opens_nothing_here(
    store: Store, store_url: str
) -> None:
    """While servers are upgraded one by one the older one must neither end nor let it run free."""
    store.keys.create("ci", who="ada", limits=KeyLimits(requests_per_minute=5))
    engine = connect(parse_url(store_url))

    def grant(**limits: int | None) -> tuple[ModelName, ...] | None:
        kept = {"requests_per_minute": 5, "tokens_per_day": None, **limits}
        text = json.dumps({"scopes": ["inference", "poems"], "models": None, "limits": kept})
        with engine.begin() as connection:
            connection.execute(api_keys.update().values(grant_json=text))
        (key,) = store.keys.valid()
        assert key.scopes == (Scope.INFERENCE,)
        assert key.limits == KeyLimits(requests_per_minute=5)
        return key.models

    assert grant(images_per_day=None) is None
    assert grant(images_per_day=3) == ()
    engine.dispose()

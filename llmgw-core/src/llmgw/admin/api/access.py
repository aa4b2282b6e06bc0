"""API keys, admin tokens and join tokens."""

from __future__ import annotations

from dataclasses import asdict

from llmgw.admin.operations import Call, Changed, Operation
from llmgw.admin.paging import PageQuery, page
from llmgw.adminapi.access import (
    JoinTokenReply,
    JoinTokenRequest,
    JoinTokensReply,
    KeyChangeRequest,
    KeyLimitsBody,
    KeyReply,
    KeyRequest,
    KeysReply,
    NewJoinTokenReply,
    NewKeyReply,
    NewTokenReply,
    TokenReply,
    TokenRequest,
    TokensReply,
)
from llmgw.adminapi.reply import Done
from llmgw.domain.ids import ModelName
from llmgw.domain.keys import KeyLimits
from llmgw.store.keys import KeyRecord
from llmgw.store.tokens import AdminToken, Role
from llmgw.store.trust.joining import JoinTokenRecord


async def keys(call: Call) -> KeysReply:
    wall = call.parts.clock.wall()
    records = await call.store.run(call.store.keys.list)
    shown, following = page(records, lambda record: record.key.id, call.query_as(PageQuery))
    return KeysReply(keys=tuple(_key(record, wall) for record in shown), next=following)


async def create_key(call: Call) -> Changed:
    request = call.body_as(KeyRequest)
    record, secret = await call.store.run(
        lambda: call.store.keys.create(
            request.name,
            who=call.caller.name,
            models=_names(request.models),
            limits=_limits(request.limits),
            lifetime_s=request.lifetime_s,
        )
    )
    await call.parts.follow()
    reply = _key(record, call.parts.clock.wall())
    return Changed(
        reply=NewKeyReply(**reply.model_dump(), secret=secret.reveal()),
        kind="key_created",
        subject=f"key {record.key.id}",
        message=request.name,
        after=reply.model_dump(mode="json"),
    )


async def change_key(call: Call) -> Changed:
    request, id_ = call.body_as(KeyChangeRequest), call.path("id")
    before, after = await call.store.run(
        lambda: call.store.keys.change(
            id_, models=_names(request.models), limits=_limits(request.limits)
        )
    )
    await call.parts.follow()
    wall = call.parts.clock.wall()
    return Changed(
        reply=_key(after, wall),
        kind="key_changed",
        subject=f"key {id_}",
        message=after.key.name,
        before=_key(before, wall).model_dump(mode="json"),
        after=_key(after, wall).model_dump(mode="json"),
    )


async def revoke_key(call: Call) -> Changed:
    id_ = call.path("id")
    record = await call.store.run(lambda: call.store.keys.revoke(id_))
    await call.parts.follow()
    return Changed(
        reply=_key(record, call.parts.clock.wall()),
        kind="key_revoked",
        subject=f"key {id_}",
        message=record.key.name,
    )


async def tokens(call: Call) -> TokensReply:
    wall = call.parts.clock.wall()
    records = await call.store.run(call.store.tokens.list)
    shown, following = page(records, lambda record: record.id, call.query_as(PageQuery))
    return TokensReply(tokens=tuple(_token(record, wall) for record in shown), next=following)


async def create_token(call: Call) -> Changed:
    request = call.body_as(TokenRequest)
    record, secret = await call.store.run(
        lambda: call.store.tokens.create(
            request.name,
            Role(request.role),
            who=call.caller.name,
            lifetime_s=request.lifetime_s,
        )
    )
    call.authenticator.forget()
    reply = _token(record, call.parts.clock.wall())
    return Changed(
        reply=NewTokenReply(**reply.model_dump(), secret=secret.reveal()),
        kind="token_created",
        subject=f"token {record.id}",
        message=f"{request.name}, {request.role}",
        after=reply.model_dump(mode="json"),
    )


async def revoke_token(call: Call) -> Changed:
    id_ = call.path("id")
    record = await call.store.run(lambda: call.store.tokens.revoke(id_))
    call.authenticator.forget()
    return Changed(
        reply=_token(record, call.parts.clock.wall()),
        kind="token_revoked",
        subject=f"token {id_}",
        message=record.name,
    )


async def join_tokens(call: Call) -> JoinTokensReply:
    wall = call.parts.clock.wall()
    records = await call.store.run(call.store.trust.tokens)
    shown, following = page(records, lambda record: record.id, call.query_as(PageQuery))
    return JoinTokensReply(
        tokens=tuple(_join_token(record, wall) for record in shown), next=following
    )


async def create_join_token(call: Call) -> Changed:
    request = call.body_as(JoinTokenRequest)
    record, token = await call.store.run(
        lambda: call.store.trust.create_token(
            who=call.caller.name,
            pool=request.pool,
            uses=request.uses,
            lifetime_s=request.lifetime_s,
        )
    )
    reply = _join_token(record, call.parts.clock.wall())
    return Changed(
        reply=NewJoinTokenReply(**reply.model_dump(), secret=token.reveal()),
        kind="join_token_created",
        subject=f"join token {record.id}",
        message=f"pool {request.pool or 'any'}, uses {request.uses or 'any number'}",
        after=reply.model_dump(mode="json"),
    )


async def revoke_join_token(call: Call) -> Changed:
    id_ = call.path("id")
    await call.store.run(lambda: call.store.trust.revoke_token(id_))
    return Changed(
        reply=Done(),
        kind="join_token_revoked",
        subject=f"join token {id_}",
        message="nodes that have joined with it stay",
    )


def _key(record: KeyRecord, wall: float) -> KeyReply:
    key = record.key
    return KeyReply(
        id=key.id,
        name=key.name,
        models=key.models,
        limits=KeyLimitsBody(**asdict(key.limits)),
        created_at=record.created_at,
        created_by=record.created_by,
        expires_at=key.expires_at,
        revoked_at=record.revoked_at,
        usable=record.usable(wall),
    )


def _token(record: AdminToken, wall: float) -> TokenReply:
    return TokenReply(
        id=record.id,
        name=record.name,
        role=record.role.value,
        created_at=record.created_at,
        created_by=record.created_by,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        usable=record.usable(wall),
    )


def _join_token(record: JoinTokenRecord, wall: float) -> JoinTokenReply:
    return JoinTokenReply(
        id=record.id,
        pool=record.pool,
        uses_left=record.uses_left,
        local_only=record.local_only,
        created_at=record.created_at,
        created_by=record.created_by,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        usable=record.usable(wall),
    )


def _names(models: tuple[str, ...] | None) -> tuple[ModelName, ...] | None:
    return None if models is None else tuple(ModelName(name) for name in models)


def _limits(body: KeyLimitsBody) -> KeyLimits:
    return KeyLimits(**body.model_dump())


OPERATIONS = (
    Operation(
        method="GET",
        path="/keys",
        role=Role.VIEWER,
        summary="All API keys, ended ones too.",
        handler=keys,
        reply=KeysReply,
        query=PageQuery,
    ),
    Operation(
        method="POST",
        path="/keys",
        role=Role.ADMIN,
        summary="Make an API key. Its text is in this reply and never again.",
        handler=create_key,
        reply=NewKeyReply,
        body=KeyRequest,
        changes=True,
    ),
    Operation(
        method="PUT",
        path="/keys/{id}",
        role=Role.ADMIN,
        summary="Change what an API key may use.",
        handler=change_key,
        reply=KeyReply,
        body=KeyChangeRequest,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/keys/{id}",
        role=Role.ADMIN,
        summary="End an API key for good.",
        handler=revoke_key,
        reply=KeyReply,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/tokens",
        role=Role.ADMIN,
        summary="All admin tokens, ended ones too.",
        handler=tokens,
        reply=TokensReply,
        query=PageQuery,
    ),
    Operation(
        method="POST",
        path="/tokens",
        role=Role.ADMIN,
        summary="Make an admin token. Its text is in this reply and never again.",
        handler=create_token,
        reply=NewTokenReply,
        body=TokenRequest,
        changes=True,
    ),
    Operation(
        method="DELETE",
        path="/tokens/{id}",
        role=Role.ADMIN,
        summary="End an admin token for good.",
        handler=revoke_token,
        reply=TokenReply,
        changes=True,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/join-tokens",
        role=Role.OPERATOR,
        summary="All join tokens, spent ones too.",
        handler=join_tokens,
        reply=JoinTokensReply,
        query=PageQuery,
    ),
    Operation(
        method="POST",
        path="/join-tokens",
        role=Role.ADMIN,
        summary="Make a join token. Its text is in this reply and never again.",
        handler=create_join_token,
        reply=NewJoinTokenReply,
        body=JoinTokenRequest,
        changes=True,
    ),
    Operation(
        method="DELETE",
        path="/join-tokens/{id}",
        role=Role.ADMIN,
        summary="End a join token. Nodes that have joined with it stay.",
        handler=revoke_join_token,
        reply=Done,
        changes=True,
        errors=(404,),
    ),
)

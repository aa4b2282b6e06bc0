"""Which certificates are good: nodes revoked and readmitted, the authority replaced in steps."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.admin.operations import Call, Changed, Operation
from llmgw.adminapi.access import AuthorityReply
from llmgw.adminapi.reply import Done
from llmgw.adminapi.work import RevokeRequest
from llmgw.domain.ids import NodeId
from llmgw.store.tokens import Role


async def revoke_node(call: Call) -> Changed:
    id_, reason = NodeId(call.path("node")), call.body_as(RevokeRequest).reason
    await call.store.run(lambda: call.store.trust.revoke(id_, reason))
    return Changed(reply=Done(), kind="node_revoked", subject=f"node {id_}", message=reason)


async def readmit_node(call: Call) -> Changed:
    id_ = NodeId(call.path("node"))
    await call.store.run(lambda: call.store.trust.readmit(id_))
    return Changed(
        reply=Done(), kind="node_readmitted", subject=f"node {id_}", message="may join again"
    )


async def authority(call: Call) -> AuthorityReply:
    return _authority(call)


async def begin(call: Call) -> Changed:
    return await _step(call, call.store.trust.begin_rotation, "a second authority is trusted")


async def switch(call: Call) -> Changed:
    return await _step(call, call.store.trust.switch_authority, "the other authority issues")


async def finish(call: Call) -> Changed:
    return await _step(call, call.store.trust.finish_rotation, "the old authority is dropped")


async def _step(call: Call, step: Callable[[], None], message: str) -> Changed:
    before = _authority(call)
    await call.store.run(step)
    after = _authority(call)
    return Changed(
        reply=after,
        kind="authority_changed",
        subject="authority",
        message=message,
        before=before.model_dump(mode="json"),
        after=after.model_dump(mode="json"),
    )


def _authority(call: Call) -> AuthorityReply:
    trust = call.store.trust
    return AuthorityReply(pin=trust.pin, trusted=trust.trusted_pins)


OPERATIONS = (
    Operation(
        method="POST",
        path="/nodes/{node}/revoke",
        role=Role.ADMIN,
        summary="Refuse a node from now on, whatever certificate it has.",
        handler=revoke_node,
        reply=Done,
        body=RevokeRequest,
        changes=True,
    ),
    Operation(
        method="POST",
        path="/nodes/{node}/readmit",
        role=Role.ADMIN,
        summary="Take a revocation back.",
        handler=readmit_node,
        reply=Done,
        changes=True,
    ),
    Operation(
        method="GET",
        path="/authority",
        role=Role.VIEWER,
        summary="The certificate authorities in force, by the pins of their keys.",
        handler=authority,
        reply=AuthorityReply,
    ),
    Operation(
        method="POST",
        path="/authority/begin",
        role=Role.ADMIN,
        summary="Replace the authority, step 1: trust a second one.",
        handler=begin,
        reply=AuthorityReply,
        changes=True,
        errors=(409,),
    ),
    Operation(
        method="POST",
        path="/authority/switch",
        role=Role.ADMIN,
        summary="Step 2, and its own way back: the other one issues.",
        handler=switch,
        reply=AuthorityReply,
        changes=True,
        errors=(409,),
    ),
    Operation(
        method="POST",
        path="/authority/finish",
        role=Role.ADMIN,
        summary="Step 3: the old one is no longer trusted. Nodes must have renewed by then.",
        handler=finish,
        reply=AuthorityReply,
        changes=True,
        errors=(409,),
    ),
)

"""Every call of the agent listener, by callers that may not make it.

TLS itself turns away who has no certificate that the cluster trusts; what one is good for is
then decided per call.
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from llmgw.contracts.join import JoinToken
from llmgw.contracts.joinproof import derive_join_authority
from llmgw.domain.ids import NodeId, SessionId
from llmgw.testing.trust import Authority
from llmgw_agent.hub.bulk import Answers
from llmgw_agent.node.minting.work import key_pem, new_key, signing_request
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.addresses import TcpAddress, parse_address
from llmgw_agent.wire.codec import DownDecoder, encode_bulk, encode_up
from llmgw_agent.wire.dialling import secure_channel
from llmgw_agent.wire.frames import BulkOpening, Goodbye
from llmgw_agent.wire.service import SERVICE, Stub, handler, read_message

NODE, OTHER = NodeId("gpu-01"), NodeId("gpu-02")
CALLS = ("session", "bulk", "join", "renew", "findweights")
#: What each call says to each caller, all of whom call themselves gpu-01.
VERDICTS = {
    "nobody": dict.fromkeys(CALLS, "UNAVAILABLE"),
    "plain text": dict.fromkeys(CALLS, "UNAVAILABLE"),
    "a node of another authority": dict.fromkeys(CALLS, "UNAVAILABLE"),
    "a join token": {
        "session": "identity_mismatch",
        "bulk": "NOT_FOUND",
        "join": "OK",
        "renew": "PERMISSION_DENIED",
        "findweights": "PERMISSION_DENIED",
    },
    "another node": {
        "session": "identity_mismatch",
        "bulk": "NOT_FOUND",
        "join": "FAILED_PRECONDITION",
        "renew": "PERMISSION_DENIED",
        "findweights": "PERMISSION_DENIED",
    },
    "a node that is revoked": {
        "session": "revoked",
        "bulk": "NOT_FOUND",
        "join": "FAILED_PRECONDITION",
        "renew": "PERMISSION_DENIED",
        "findweights": "PERMISSION_DENIED",
    },
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("caller", VERDICTS)
async def test_a_call_refuses_who_may_not_make_it(workshop: Any, caller: str, call: str) -> None:
    async with workshop.server("127.0.0.1:0").running() as server:
        async with _channel(workshop, server, caller) as channel:
            registration = workshop.agent(server).outbox.registration(SessionId("life/1"))
            said = await _verdict(Stub(channel), call, encode_up(registration)[0])
        assert said == VERDICTS[caller][call]
        assert server.reports.registrations == []
        assert workshop.trust.renewed == []


def test_the_table_above_leaves_no_call_out() -> None:
    class Nothing:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    served: Any = handler(Nothing())

    class Details:
        method = ""
        invocation_metadata = ()

    found = []
    for name in pb.DESCRIPTOR.services_by_name["NodeStream"].methods_by_name:
        details = Details()
        details.method = f"/{SERVICE}/{name}"
        assert served.service(details) is not None
        found.append(name.lower())
    assert sorted(found) == sorted(CALLS)


def test_an_answer_is_taken_from_the_node_that_was_asked_only() -> None:
    answers = Answers()
    with answers.expect(NODE) as expected:
        assert answers.claim(expected.id, OTHER) is None
        assert answers.claim("0" * 32, NODE) is None
        assert answers.claim(expected.id, NODE) is expected
        assert answers.claim(expected.id, NODE) is None


def _channel(workshop: Any, server: Any, caller: str) -> grpc.aio.Channel:
    address = parse_address(server.address)
    assert isinstance(address, TcpAddress)
    if caller == "plain text":
        return grpc.aio.insecure_channel(str(address))
    roots = workshop.trust.authorities[0].pem
    if caller == "nobody":
        return secure_channel(address, grpc.ssl_channel_credentials(root_certificates=roots))
    key = new_key()
    credentials = grpc.ssl_channel_credentials(
        root_certificates=roots,
        private_key=key_pem(key),
        certificate_chain=_certificate(workshop, caller, key.public_key()),
    )
    return secure_channel(address, credentials)


def _certificate(workshop: Any, caller: str, public: Any) -> bytes:
    chain: bytes
    match caller:
        case "a node of another authority":
            uri = f"spiffe://{workshop.trust.cluster_id}/node/{NODE}"
            chain = Authority().sign(public, x509.UniformResourceIdentifier(uri))
        case "a join token":
            token = JoinToken.parse(workshop.trust.new_token())
            proof = derive_join_authority(token.id, token.secret).issue(public, NODE)
            chain = proof.public_bytes(serialization.Encoding.PEM)
        case "another node":
            chain = workshop.trust.node_certificate(OTHER, public)
        case _:
            workshop.trust.revoke(NODE, "stolen")
            chain = workshop.trust.node_certificate(NODE, public)
    return chain


async def _verdict(stub: Stub, name: str, registration: bytes) -> str:
    """Make a call as gpu-01; return the word for how it was received."""
    try:
        if name == "session":
            call = stub.session(None, timeout=8)
            await call.write(registration)
            data = await read_message(call)
            assert data is not None, await call.code()
            goodbye = DownDecoder().feed(data)
            assert isinstance(goodbye, Goodbye)
            return str(goodbye.code)
        if name == "bulk":
            bulk = stub.bulk(None, timeout=8)
            await bulk.write(encode_bulk(BulkOpening(id="0" * 32)))
            await bulk.done_writing()
            await bulk
        elif name == "findweights":
            await stub.find_weights(pb.WeightsQuestion(ref="hf:org/name@main"), timeout=8)
        else:
            request = pb.CertificateRequest(node=NODE, csr=signing_request(new_key(), NODE))
            await getattr(stub, name)(request, timeout=8)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"

"""Joining, proving, renewing and refusing over mutual TLS."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from llmgw.contracts.join import JoinToken
from llmgw.contracts.joinproof import derive_join_authority
from llmgw.domain.commands import StartShard
from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.errors import PermanentError, TransientError
from llmgw.testing.trust import Authority, InMemoryTrust
from llmgw_agent.node.link import ServerState
from llmgw_agent.node.minting.work import key_pem, new_key, signing_request
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.addresses import TcpAddress, parse_address
from llmgw_agent.wire.authorities import authorities_digest
from llmgw_agent.wire.codec import DownDecoder, encode_up
from llmgw_agent.wire.dialling import secure_channel
from llmgw_agent.wire.service import Stub, read_message

NODE = NodeId("gpu-01")
LOOPBACK = "127.0.0.1:0"


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
async def test_an_agent_joins_with_a_token_and_is_then_known_by_its_certificate(
    workshop: Any, listen: str
) -> None:
    async with workshop.server(listen).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        assert [node for node, _ in workshop.trust.joined] == [NODE]
        assert workshop.trust.joined[0][1] in ("127.0.0.1", "::1")
        # Started again without a token: the certificate is enough.
        again = workshop.agent(server, folder=agent.folder, uid="uid-1")
        async with again.running():
            await server.reports.until(lambda: len(server.reports.registrations) == 2)


async def test_commands_and_reports_pass_over_tls(workshop: Any) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            await server.dispatcher.dispatch(
                NODE, [StartShard(epoch=Epoch(1), spec=workshop.spec())]
            )
            await agent.commands.until(lambda: agent.commands.applied)
            agent.outbox.publish(workshop.report())
            await server.reports.until(lambda: server.reports.shards)


async def test_key_and_certificate_are_kept_for_their_owner_alone(workshop: Any) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        assert (agent.folder / "identity.json").stat().st_mode & 0o777 == 0o600


async def test_a_spent_token_is_named_as_the_likely_reason(workshop: Any) -> None:
    token = workshop.trust.new_token()
    async with workshop.server(LOOPBACK).running() as server:
        async with workshop.agent(server, node="a", token=token).running():
            await server.reports.until(lambda: server.reports.registrations)
        second = workshop.agent(server, node="b", token=token)
        # TLS itself refuses it: the server trusts the token's authority no more.
        with pytest.raises(TransientError, match=r"127\.0\.0\.1.*token is spent"):
            await second.credentials.channel_credentials(parse_address(server.address))


async def test_a_token_of_another_cluster_is_noticed_before_anything_is_sent(
    workshop: Any,
) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=InMemoryTrust().new_token())
        with pytest.raises(PermanentError, match="not the one that made the join token"):
            await agent.credentials.channel_credentials(parse_address(server.address))
        assert workshop.trust.joined == []


async def test_an_agent_whose_join_is_refused_for_good_ends(workshop: Any) -> None:
    workshop.trust.revoke(NODE, "stolen")
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent.link.run)
        assert caught.group_contains(PermanentError, match="node gpu-01 is revoked: stolen")


@pytest.mark.parametrize("token", ["llmgw1.x", "", "llmgw1.abcd.zzz.ü"])
async def test_what_is_no_token_is_refused_without_showing_it(workshop: Any, token: str) -> None:
    agent = workshop.agent("127.0.0.1:1", token=token)
    with pytest.raises(PermanentError, match="not a join token") as caught:
        await agent.credentials.channel_credentials(TcpAddress("127.0.0.1", 1))
    assert token == "" or token not in str(caught.value)


async def test_without_token_and_certificate_the_way_out_is_named(workshop: Any) -> None:
    agent = workshop.agent("127.0.0.1:1")
    with pytest.raises(TransientError, match="llmgw ctl join-token create"):
        await agent.credentials.channel_credentials(TcpAddress("127.0.0.1", 1))


async def test_a_token_file_may_come_later(workshop: Any, tmp_path: Any) -> None:
    file = tmp_path / "token"
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=f"@{file}")
        with pytest.raises(TransientError, match=str(file)):
            await agent.credentials.channel_credentials(parse_address(server.address))
        file.write_text(workshop.trust.new_token() + "\n")
        await agent.credentials.channel_credentials(parse_address(server.address))


async def test_without_a_server_the_reason_names_the_address(workshop: Any, free_port: int) -> None:
    agent = workshop.agent(f"127.0.0.1:{free_port}", token=workshop.trust.new_token())
    with pytest.raises(TransientError, match=f"no server at 127.0.0.1:{free_port}: Connection"):
        await agent.credentials.channel_credentials(TcpAddress("127.0.0.1", free_port))


async def test_a_certificate_opens_a_session_for_its_own_node_only(workshop: Any) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        liar = workshop.agent(server, node="gpu-99", folder=agent.folder)
        async with liar.running():
            await _until(liar, ServerState.REFUSED)
            assert "node gpu-01's" in liar.link.status()[0].reason


async def test_a_join_token_opens_no_session(workshop: Any) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        token = JoinToken.parse(workshop.trust.new_token())
        key = new_key()
        proof = derive_join_authority(token.id, token.secret).issue(key.public_key(), NODE)
        agent = workshop.agent(server)
        async with _channel(workshop, server, key, proof.public_bytes(_PEM)) as channel:
            await _assert_refused(Stub(channel), agent, "join first")


async def test_a_join_token_cannot_sign_the_certificate_of_a_node(workshop: Any) -> None:
    """Its authority is trusted by TLS, so the name in the certificate must not be believed."""
    async with workshop.server(LOOPBACK).running() as server:
        token = JoinToken.parse(workshop.trust.new_token())
        authority = derive_join_authority(token.id, token.secret)
        key = new_key()
        forged = _leaf(authority, key, f"spiffe://{workshop.trust.cluster_id}/node/{NODE}")
        agent = workshop.agent(server)
        async with _channel(workshop, server, key, forged) as channel:
            await _assert_refused(Stub(channel), agent, "join first")


async def test_a_certificate_of_another_authority_is_refused_by_tls(workshop: Any) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        key = new_key()
        stranger = Authority()
        uri = x509.UniformResourceIdentifier(f"spiffe://{workshop.trust.cluster_id}/node/{NODE}")
        leaf = stranger.sign(key.public_key(), uri)
        async with _channel(workshop, server, key, leaf) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Stub(channel).renew(pb.CertificateRequest(node=NODE), timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_agent_does_not_speak_with_a_server_of_another_authority(
    workshop: Any, tmp_path: Any
) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
    workshop.trust = InMemoryTrust(workshop.trust.cluster_id)
    async with workshop.server(LOOPBACK).running() as impostor:
        again = workshop.agent(impostor, folder=agent.folder)
        async with again.running():
            await _until(again, ServerState.WAITING)
            assert impostor.reports.registrations == []


async def test_a_certificate_is_renewed_after_a_third_of_its_life(workshop: Any) -> None:
    workshop.trust.grant_age_days = 9
    workshop.trust.grant_days = 30
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        servers = (parse_address(server.address),)
        await agent.credentials.channel_credentials(servers[0])
        await agent.credentials.renew_if_due(servers)
        assert workshop.trust.renewed == []
        workshop.trust.grant_age_days = 11
        (agent.folder / "identity.json").unlink()
        due = workshop.agent(
            server, token=workshop.trust.new_token(), node="gpu-02", folder=agent.folder
        )
        await due.credentials.channel_credentials(servers[0])
        workshop.trust.grant_age_days = 0
        await due.credentials.renew_if_due(servers)
        await due.credentials.renew_if_due(servers)
        assert workshop.trust.renewed == ["gpu-02"]


async def test_a_certificate_that_ran_out_is_replaced_by_joining_again(workshop: Any) -> None:
    workshop.trust.grant_days = 1
    workshop.trust.grant_age_days = 2
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token(reusable=True))
        address = parse_address(server.address)
        await agent.credentials.channel_credentials(address)
        workshop.trust.grant_days, workshop.trust.grant_age_days = 30, 0
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        assert len(workshop.trust.joined) == 2


async def test_without_a_token_an_expired_certificate_says_when_it_ran_out(workshop: Any) -> None:
    workshop.trust.grant_days = 1
    workshop.trust.grant_age_days = 2
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        address = parse_address(server.address)
        await agent.credentials.channel_credentials(address)
        later = workshop.agent(server, folder=agent.folder)
        day = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)
        with pytest.raises(TransientError, match=f"ran out on {day}.*--join"):
            await later.credentials.channel_credentials(address)


async def test_a_node_that_was_a_member_goes_on_whoever_refuses_it(workshop: Any) -> None:
    """Its engines need it, whatever has become of its certificate and its token."""
    workshop.trust.grant_days = 1
    workshop.trust.grant_age_days = 2
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token(reusable=True))
        await agent.credentials.channel_credentials(parse_address(server.address))
        workshop.trust.revoke(NODE, "stolen")
        async with agent.running():
            await _until(agent, ServerState.WAITING)
            assert "ran out on" in agent.link.status()[0].reason
            assert "node gpu-01 is revoked: stolen" in agent.link.status()[0].reason


async def test_rotation_and_a_change_of_authority_leave_streams_alone(workshop: Any) -> None:
    workshop.trust.grant_age_days = 11  # so that the node's certificate is due for renewal
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            workshop.trust.rotate_server_certificate()
            workshop.trust.add_authority()
            # Between the steps every node renews: under the new authority, trusting both.
            await agent.credentials.renew_if_due((_tcp(server),))
            assert workshop.trust.renewed == [NODE]
            workshop.trust.drop_authority()
            seen = len(server.reports.beats)
            await server.reports.until(lambda: len(server.reports.beats) > seen + 2)
            assert server.reports.gone == []
        again = workshop.agent(server, folder=agent.folder, uid=agent.inventory.agent_uid)
        async with again.running():
            await server.reports.until(lambda: len(server.reports.registrations) == 2)


async def test_a_change_of_authority_is_followed_at_once_and_without_a_new_session(
    workshop: Any,
) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(agent.credentials.run, (_tcp(server),))
            await server.reports.until(lambda: server.reports.beats)
            workshop.trust.add_authority()
            await server.reports.until(lambda: workshop.trust.renewed)
            for _ in range(5):
                seen = len(server.reports.beats)
                await server.reports.until(lambda: len(server.reports.beats) > seen)  # noqa: B023
            assert workshop.trust.renewed == [NODE]
            assert agent.kept.authorities == authorities_digest(
                workshop.trust.server_identity().client_roots
            )
            assert server.reports.gone == []
            tasks.cancel_scope.cancel()


async def test_an_agent_that_slept_through_a_change_of_authority_joins_with_a_new_token(
    workshop: Any,
) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        workshop.trust.add_authority()
        workshop.trust.drop_authority()
        back = workshop.agent(server, folder=agent.folder, token=workshop.trust.new_token())
        async with back.running():
            await server.reports.until(lambda: len(server.reports.registrations) == 2)


async def test_a_token_of_another_cluster_does_not_replace_a_good_certificate(
    workshop: Any,
) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        again = workshop.agent(server, folder=agent.folder, token=InMemoryTrust().new_token())
        async with again.running():
            await server.reports.until(lambda: len(server.reports.registrations) == 2)


async def test_changing_over_to_another_cluster_takes_an_explicit_word(workshop: Any) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
    workshop.trust = InMemoryTrust("another-cluster")
    async with workshop.server(LOOPBACK).running() as other:
        address = _tcp(other)
        again = workshop.agent(other, folder=agent.folder, token=workshop.trust.new_token())
        await again.credentials.channel_credentials(address)
        assert again.kept.cluster_id == "test-cluster"
        again = workshop.agent(other, folder=agent.folder, token=workshop.trust.new_token())
        again.kept.forget()
        await again.credentials.channel_credentials(address)
        assert again.kept.cluster_id == "another-cluster"


async def test_a_token_that_is_bound_to_a_pool_decides_the_pool(workshop: Any) -> None:
    workshop.trust.pool = "chat"
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        assert agent.inventory.pool == "default"
        assert server.reports.registrations[0].inventory.pool == "chat"


async def test_a_node_that_was_let_into_one_pool_cannot_be_in_another(workshop: Any) -> None:
    """Its certificate says which, also the next ones; what the node itself says does not count."""
    workshop.trust.pool = "chat"
    workshop.trust.grant_age_days = 11  # so that the certificate is due for renewal
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
        workshop.trust.pool = None
        liar = workshop.agent(server, folder=agent.folder, uid=agent.inventory.agent_uid)
        await liar.credentials.renew_if_due((_tcp(server),))
        assert workshop.trust.renewed == [NODE]
        liar.kept._document = replace(liar.kept._document, pool=None)
        liar.update(pool="secret")
        async with liar.running():
            await server.reports.until(lambda: len(server.reports.registrations) == 2)
            liar.update(pool="public", labels={"changed": "yes"})
            await server.reports.until(lambda: len(server.reports.registrations) == 3)
    assert [item.inventory.pool for item in server.reports.registrations] == ["chat"] * 3


async def test_a_node_renews_for_itself_only(workshop: Any) -> None:
    async with workshop.server(LOOPBACK).running() as server:
        agent = workshop.agent(server, token=workshop.trust.new_token())
        credentials = await agent.credentials.channel_credentials(parse_address(server.address))
        key = new_key()
        request = pb.CertificateRequest(node="gpu-99", csr=signing_request(key, NodeId("gpu-99")))
        async with secure_channel(_tcp(server), credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Stub(channel).renew(request, timeout=5)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert workshop.trust.renewed == []


async def test_a_proxy_in_the_environment_is_not_used(
    workshop: Any, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, f"http://127.0.0.1:{free_port}")
    async with (
        workshop.server(LOOPBACK).running() as server,
        workshop.agent(server, token=workshop.trust.new_token()).running(),
    ):
        await server.reports.until(lambda: server.reports.registrations)


_PEM = serialization.Encoding.PEM


def _tcp(server: Any) -> TcpAddress:
    address = parse_address(server.address)
    assert isinstance(address, TcpAddress)
    return address


def _channel(workshop: Any, server: Any, key: Any, chain: bytes) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        root_certificates=workshop.trust.authorities[0].pem,
        private_key=key_pem(key),
        certificate_chain=chain,
    )
    return secure_channel(_tcp(server), credentials)


def _leaf(authority: Any, key: Any, uri: str) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gpu-01")])
    leaf: x509.Certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    return leaf.public_bytes(_PEM)


async def _assert_refused(stub: Stub, agent: Any, why: str) -> None:
    call = stub.session(None)
    await call.write(encode_up(agent.outbox.registration(SessionId("life/1")))[0])
    data = await read_message(call)
    assert data is not None
    assert why in str(DownDecoder().feed(data))


async def _until(agent: Any, state: ServerState) -> None:
    with anyio.fail_after(5):
        while agent.link.status()[0].state is not state:  # noqa: ASYNC110 # looked at
            await anyio.sleep(0.01)

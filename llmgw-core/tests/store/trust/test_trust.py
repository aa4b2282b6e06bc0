"""Who may join, with what, and for how long."""

from __future__ import annotations

import datetime
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
)
from cryptography.x509.verification import (
    Store as Roots,
)

from llmgw.contracts.join import SERVER_NAME, JoinToken
from llmgw.contracts.joinproof import derive_join_authority, key_pin
from llmgw.domain.ids import NodeId
from llmgw.errors import PermanentError, RequestError
from llmgw.store import Store
from llmgw.store.trust.trust import is_this_machine
from llmgw.testing.clock import FakeClock

NODE = NodeId("gpu-01")
ELSEWHERE = "192.0.2.7"


@pytest.fixture
def clock() -> FakeClock:
    # Certificates are verified at the real date, so that this clock must not be far from it.
    return FakeClock(wall=time.time())


def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> bytes:
    made = key or ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return csr.sign(made, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def chain(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


def verify_client(leaf: bytes, roots: bytes) -> list[str]:
    # The names that agents have are URIs, which are not critical here.
    verifier = (
        PolicyBuilder()
        .store(Roots(chain(roots)))
        .extension_policies(
            ca_policy=ExtensionPolicy.webpki_defaults_ca(),
            ee_policy=ExtensionPolicy.permit_all().require_present(
                x509.SubjectAlternativeName, Criticality.AGNOSTIC, None
            ),
        )
        .build_client_verifier()
    )
    verified = verifier.verify(chain(leaf)[0], [])
    return [str(name.value) for name in verified.subjects or []]


def test_a_token_lets_one_node_in_and_binds_it_to_its_pool(store: Store) -> None:
    record, token = store.trust.create_token(who="ada", pool="chat")
    grant = store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address=ELSEWHERE)
    assert (grant.pool, grant.cluster_id) == ("chat", store.cluster_id)
    names = [
        f"spiffe://{store.cluster_id}/node/{NODE}",
        f"spiffe://{store.cluster_id}/pool/chat",
    ]
    assert verify_client(grant.certificate_chain, grant.ca_bundle) == names
    renewed = store.trust.renew(node=NODE, csr=request(), pool="chat")
    assert verify_client(renewed.certificate_chain, renewed.ca_bundle) == names
    with pytest.raises(PermanentError, match="it has been used"):
        store.trust.join(token_id=record.id, csr=request(), node=NODE, peer_address=ELSEWHERE)


def test_a_bad_request_does_not_use_the_token_up(store: Store) -> None:
    _, token = store.trust.create_token(who="ada")
    for csr in (b"junk", request(rsa.generate_private_key(65537, 2048))):
        with pytest.raises(PermanentError, match="certificate request"):
            store.trust.join(token_id=token.id, csr=csr, node=NODE, peer_address=ELSEWHERE)
    store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address=ELSEWHERE)


def test_the_server_trusts_a_tokens_authority_only_while_it_is_good(
    store: Store, clock: FakeClock
) -> None:
    _, token = store.trust.create_token(who="ada", lifetime_s=60)
    authority = derive_join_authority(token.id, token.secret)
    trusted = key_pin(authority.certificate)

    def is_trusted() -> bool:
        return trusted in map(key_pin, chain(store.trust.server_identity().client_roots))

    assert is_trusted()
    clock.jump_wall(61)
    assert not is_trusted()
    with pytest.raises(PermanentError, match="it has expired"):
        store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address=ELSEWHERE)


def test_a_revoked_token_is_no_longer_trusted(store: Store) -> None:
    _, token = store.trust.create_token(who="ada")
    before = len(chain(store.trust.server_identity().client_roots))
    store.trust.revoke_token(token.id)
    assert len(chain(store.trust.server_identity().client_roots)) == before - 1
    with pytest.raises(PermanentError, match="it was revoked"):
        store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address=ELSEWHERE)
    with pytest.raises(RequestError, match="there is no join token"):
        store.trust.revoke_token("ghost")


def test_a_token_of_another_cluster_is_unknown(store: Store) -> None:
    with pytest.raises(PermanentError, match="does not know the join token"):
        store.trust.join(token_id="ghost", csr=request(), node=NODE, peer_address=ELSEWHERE)


@pytest.mark.parametrize("node", ["..", "a/b", "", "-x", "ä"])
def test_a_node_id_that_could_be_a_path_is_refused(store: Store, node: str) -> None:
    """C053"""
    _, token = store.trust.create_token(who="ada")
    with pytest.raises(PermanentError, match="the node id must be"):
        store.trust.join(
            token_id=token.id, csr=request(), node=NodeId(node), peer_address=ELSEWHERE
        )


def test_a_revoked_node_neither_joins_nor_renews_until_it_is_readmitted(store: Store) -> None:
    _, token = store.trust.create_token(who="ada", uses=None)
    store.trust.revoke(NODE, "stolen")
    assert store.trust.revoked(NODE) == "stolen"
    with pytest.raises(PermanentError, match="was revoked: stolen"):
        store.trust.renew(node=NODE, csr=request(), pool=None)
    with pytest.raises(PermanentError, match="was revoked: stolen"):
        store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address=ELSEWHERE)
    store.trust.readmit(NODE)
    store.trust.renew(node=NODE, csr=request(), pool=None)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_what_another_server_revokes_is_known_after_a_refresh(
    store: Store, open_: Callable[..., Store]
) -> None:
    other = open_()
    _, token = other.trust.create_token(who="ada")
    other.trust.revoke(NODE, "stolen")
    store.trust.refresh()
    assert store.trust.revoked(NODE) == "stolen"
    store.trust.join(
        token_id=token.id, csr=request(), node=NodeId("gpu-02"), peer_address=ELSEWHERE
    )


def test_the_local_token_is_kept_0600_reused_and_good_here_only(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "join.token"
    store.trust.write_local_token(path)
    text = path.read_text()
    store.trust.write_local_token(path)
    assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    token = JoinToken.parse(text)
    assert token.pin == store.trust.pin
    for _ in range(2):
        store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address="127.0.0.1")
    with pytest.raises(PermanentError, match="own machine only"):
        store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address=ELSEWHERE)


def test_a_local_token_whose_file_was_lost_is_replaced_and_ended(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "join.token"
    store.trust.write_local_token(path)
    lost = JoinToken.parse(path.read_text())
    path.unlink()
    store.trust.write_local_token(path)
    assert JoinToken.parse(path.read_text()).id != lost.id
    with pytest.raises(PermanentError, match="revoked"):
        store.trust.join(token_id=lost.id, csr=request(), node=NODE, peer_address="::1")


def test_another_server_on_the_same_store_leaves_the_local_token_of_the_first_alone(
    store: Store, tmp_path: Path
) -> None:
    first, second = tmp_path / "one.token", tmp_path / "two.token"
    store.trust.write_local_token(first)
    store.trust.write_local_token(second)
    for path in (first, second):
        token = JoinToken.parse(path.read_text())
        store.trust.join(token_id=token.id, csr=request(), node=NODE, peer_address="::1")


@pytest.mark.parametrize(
    ("address", "ours"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("unix", True),
        ("192.0.2.7", False),
        ("2001:db8::7", False),
        ("0.0.0.0", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_only_this_machines_own_addresses_are_local(address: str, ours: bool) -> None:
    assert is_this_machine(address) is ours


def test_agents_find_the_name_they_check_and_the_pin_they_hold(store: Store) -> None:
    leaf, authority = chain(store.trust.server_identity().certificate_chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert SERVER_NAME in names.get_values_for_type(x509.DNSName)
    assert key_pin(authority) == store.trust.pin
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= datetime.timedelta(days=31)


def test_a_machine_whose_clock_is_hours_slow_believes_the_certificate(
    store: Store, clock: FakeClock
) -> None:
    leaf, _ = chain(store.trust.server_identity().certificate_chain)
    assert leaf.not_valid_before_utc.timestamp() <= clock.wall() - 12 * 3600


def test_the_server_signs_itself_a_new_certificate_in_time(store: Store, clock: FakeClock) -> None:
    first = store.trust.server_identity().certificate_chain
    assert store.trust.server_identity().certificate_chain == first
    clock.jump_wall(11 * 86_400)
    assert store.trust.server_identity().certificate_chain != first


def test_an_authority_is_replaced_in_three_steps_that_lose_no_node(store: Store) -> None:
    """Old certificates hold until the last step; new ones hold from the second on."""
    old = store.trust.renew(node=NODE, csr=request(), pool=None)
    old_pin = store.trust.pin
    store.trust.begin_rotation()
    both = store.trust.renew(node=NODE, csr=request(), pool=None)
    assert len(chain(both.ca_bundle)) == 2
    assert store.trust.pin == old_pin

    store.trust.switch_authority()
    assert store.trust.pin != old_pin
    new = store.trust.renew(node=NODE, csr=request(), pool=None)
    roots = store.trust.server_identity().client_roots
    assert verify_client(old.certificate_chain, roots)
    assert verify_client(new.certificate_chain, roots)
    assert verify_client(new.certificate_chain, both.ca_bundle)

    store.trust.switch_authority()
    assert store.trust.pin == old_pin
    store.trust.switch_authority()
    store.trust.finish_rotation()
    roots = store.trust.server_identity().client_roots
    assert verify_client(new.certificate_chain, roots)
    with pytest.raises(x509.verification.VerificationError):
        verify_client(old.certificate_chain, roots)


def test_steps_out_of_order_are_refused(store: Store) -> None:
    for step in (store.trust.switch_authority, store.trust.finish_rotation):
        with pytest.raises(RequestError, match="no change of the authority is under way"):
            step()
    store.trust.begin_rotation()
    with pytest.raises(RequestError, match="already under way"):
        store.trust.begin_rotation()

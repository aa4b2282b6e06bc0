"""Whatever can be said arrives as it was said, with every field."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NewType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.domain.commands import (
    AdaptShard,
    DrainShard,
    SleepShard,
    StartShard,
    StopShard,
    WakeShard,
)
from llmgw.domain.ids import DeviceId, NodeId, SessionId, ShardId
from llmgw.domain.nodes import Device
from llmgw.domain.replicas import FailureCause, ShardState
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw.domain.secret import Secret
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.codec import (
    DownDecoder,
    UpDecoder,
    decode_bulk,
    decode_offer,
    encode_bulk,
    encode_down,
    encode_offer,
    encode_up,
)
from llmgw_agent.wire.codec.parts import MAX_MESSAGE
from llmgw_agent.wire.frames import (
    AdmitPeer,
    BulkDone,
    BulkFrame,
    BulkOpening,
    BulkProblem,
    BulkRequest,
    BulkWorking,
    DownFrame,
    Goodbye,
    HeartbeatReply,
    LogLines,
    LogSources,
    MalformedFrame,
    UnknownFrame,
    Unsupported,
    UpFrame,
    WeightsList,
    WeightsOffer,
    Welcome,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SCALARS: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    int: st.integers(0, 2**31 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    Secret: st.builds(Secret, st.text(max_size=20)),
    type(None): st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Draw any value of a type of the domain: each field by its own type, so none is left out."""
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, NewType):
        return values(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
        return st.builds(typing.cast("Callable[..., Any]", kind), **fields)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(values, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is frozenset:
        return st.frozensets(values(arguments[0]), max_size=3)
    if origin is Mapping and arguments[1] is object:
        return st.dictionaries(st.text(), JSON, max_size=3)
    if origin is Mapping:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    raise AssertionError(f"no way to draw {kind}")


UP = (Registration, Heartbeat, ShardReport, Rejection, Unsupported)
DOWN = (
    Welcome,
    Goodbye,
    HeartbeatReply,
    StartShard,
    DrainShard,
    StopShard,
    SleepShard,
    WakeShard,
    AdaptShard,
    BulkRequest,
    AdmitPeer,
    Unsupported,
)
BULK = (BulkOpening, LogSources, LogLines, WeightsList, BulkWorking, BulkDone, BulkProblem)
thorough = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", UP, ids=lambda kind: str(kind.__name__))
def test_every_field_of_a_frame_from_the_agent_arrives(kind: type) -> None:
    @thorough
    @given(frame=values(kind))
    def check(frame: UpFrame) -> None:
        assert _up(frame) == frame

    check()


@pytest.mark.parametrize("kind", DOWN, ids=lambda kind: str(kind.__name__))
def test_every_field_of_a_frame_from_the_server_arrives(kind: type) -> None:
    @thorough
    @given(frame=values(kind))
    def check(frame: DownFrame) -> None:
        assert _down(frame) == frame

    check()


@pytest.mark.parametrize("kind", BULK, ids=lambda kind: str(kind.__name__))
def test_every_field_of_a_bulk_frame_arrives(kind: type) -> None:
    @thorough
    @given(frame=values(kind))
    def check(frame: BulkFrame) -> None:
        assert decode_bulk(encode_bulk(frame)) == frame

    check()


def test_every_field_of_an_offer_of_weights_arrives_and_an_empty_one_is_none() -> None:
    @thorough
    @given(offer=values(WeightsOffer))
    def check(offer: WeightsOffer) -> None:
        is_one = bool(offer.manifest and offer.peers)
        assert decode_offer(encode_offer(offer)) == (offer if is_one else None)

    check()


def test_the_wire_knows_every_state_and_every_cause() -> None:
    states = {name.removeprefix("SHARD_STATE_") for name in pb.ShardState.keys()}  # noqa: SIM118
    causes = {name.removeprefix("FAILURE_CAUSE_") for name in pb.FailureCause.keys()}  # noqa: SIM118
    assert states == {state.name for state in ShardState} | {"UNSPECIFIED"}
    assert causes == {cause.name for cause in FailureCause} | {"UNSPECIFIED"}


def test_names_with_odd_bytes_are_replaced_and_never_break_the_stream() -> None:
    odd = b"H100 \xff\xfe".decode("utf-8", "surrogateescape")
    device = Device(id=DeviceId("GPU-1"), index=0, kind=odd, vendor="nvidia", memory_mib=None)
    beat = Heartbeat(session=SessionId("b/1"), sequence=1, devices=(device,))
    received = _up(beat)
    assert isinstance(received, Heartbeat)
    assert received.devices[0].kind == "H100 ??"


def test_odd_bytes_of_an_engines_last_lines_are_shown_as_replacements() -> None:
    report = pb.ShardReport()
    report.shard.state = pb.SHARD_STATE_FAILED
    report.shard.failure.cause = pb.FAILURE_CAUSE_UNKNOWN
    report.shard.failure.log_tail.append(b"loading \xff weights")
    received = UpDecoder().feed(pb.AgentFrame(shard=report).SerializeToString())
    assert isinstance(received, ShardReport)
    assert received.shard.failure is not None
    assert received.shard.failure.log_tail == ("loading � weights",)


def test_a_large_frame_travels_in_pieces_of_at_most_one_mebibyte() -> None:
    frame = Rejection(
        node=NodeId("n"), shard=ShardId("s"), code="bad_option", message="x" * (3 * MAX_MESSAGE)
    )
    messages = encode_up(frame)
    assert len(messages) == 4
    assert max(map(len, messages)) <= MAX_MESSAGE
    assert _up(frame) == frame


def test_a_frame_that_is_too_large_even_in_pieces_is_refused_by_its_sender() -> None:
    frame = Unsupported(what="x" * (33 * MAX_MESSAGE))
    with pytest.raises(MalformedFrame, match="above"):
        encode_up(frame)


def test_pieces_without_end_are_refused_by_their_receiver() -> None:
    decoder = UpDecoder()
    piece = pb.AgentFrame(part=pb.Part(data=b"x" * MAX_MESSAGE, last=False)).SerializeToString()
    for _ in range(32):
        assert decoder.feed(piece) is None
    with pytest.raises(MalformedFrame, match="above"):
        decoder.feed(piece)


def test_a_frame_between_the_pieces_of_another_is_malformed() -> None:
    decoder = UpDecoder()
    decoder.feed(pb.AgentFrame(part=pb.Part(data=b"x", last=False)).SerializeToString())
    with pytest.raises(MalformedFrame, match="between"):
        decoder.feed(encode_up(Unsupported(what="x"))[0])


def test_a_frame_of_a_newer_release_is_unknown_and_not_malformed() -> None:
    field_99 = bytes([0x9A, 0x06, 0x00])
    with pytest.raises(UnknownFrame):
        UpDecoder().feed(field_99)
    with pytest.raises(UnknownFrame):
        DownDecoder().feed(field_99)
    with pytest.raises(UnknownFrame):
        decode_bulk(field_99)


@pytest.mark.parametrize("number", [0, 99])
def test_a_state_of_a_newer_release_is_unknown_and_named(number: int) -> None:
    report = pb.ShardReport()
    report.shard.state = number  # type: ignore[assignment] # what a newer peer sends
    with pytest.raises(UnknownFrame, match=f"ShardState {number}"):
        UpDecoder().feed(pb.AgentFrame(shard=report).SerializeToString())


@pytest.mark.parametrize("options", ["[]", "{", "1", '"x"', "[" * 100_000])
def test_options_that_are_no_json_object_are_malformed(options: str) -> None:
    frame = pb.ServerFrame()
    frame.start.spec.options_json = options
    with pytest.raises(MalformedFrame):
        DownDecoder().feed(frame.SerializeToString())


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60))
def test_no_bytes_raise_anything_but_the_two_errors_of_the_wire(data: bytes) -> None:
    for decode in (UpDecoder().feed, DownDecoder().feed, decode_bulk):
        try:
            decode(data)
        except (MalformedFrame, UnknownFrame):
            pass


def _up(frame: UpFrame) -> UpFrame | None:
    decoder = UpDecoder()
    *before, last = [decoder.feed(message) for message in encode_up(frame)]
    assert before == [None] * len(before)
    return last


def _down(frame: DownFrame) -> DownFrame | None:
    decoder = DownDecoder()
    *before, last = [decoder.feed(message) for message in encode_down(frame)]
    assert before == [None] * len(before)
    return last

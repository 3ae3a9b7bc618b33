"""Every row of the table of frames that are refused, each without a change of state."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.exchange.messages import (
    HEADER_BYTES,
    KINDS,
    OVERHEAD,
    PROOF_BYTES,
    SERVER,
    Acknowledgement,
    DecodeError,
    Endpoint,
    Finished,
    ForgeryError,
    Frame,
    FrameError,
    Join,
    Leave,
    Model,
    Refusal,
    Update,
    decode,
    encode,
    length_of,
    open_frame,
    proven,
    seal,
)
from forethought.gossip.events import ANSWER, LAST, Hello, Known, Weights

RUN, OTHER_RUN = bytes(range(32)), bytes(32)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in (1, 2, 3)]
RAW = [key.public_key().public_bytes_raw() for key in KEYS]
D = 5
LENGTH_AT, KIND_AT, VERSION_AT, RESERVED_AT = 8, 5, 4, 6


def endpoint(me: int, run: bytes = RUN, largest: float = 10.0, parameters: int = D) -> Endpoint:
    keys = {0: RAW[0], 1: RAW[1]} if me == SERVER else {SERVER: RAW[2]}
    return Endpoint(run, me, KEYS[me], keys, parameters, lambda sender, message: largest)


CLIENT, OTHER, SERVICE = endpoint(0), endpoint(1), endpoint(SERVER)
WORKER, OTHER_WORKER = (Endpoint(RUN, me, KEYS[me], dict(enumerate(RAW)), D) for me in (0, 1))


def vector(*values: float) -> np.ndarray:
    return np.array(values or (1, 2, 3, 4, 5), dtype=np.float32)


def update(**changes: object) -> Update:
    return Update(**{"round": 3, "base": 2, "vector": vector(), **changes})  # type: ignore[arg-type]


SENT = CLIENT.seal(SERVER, update())


def signed_again(payload: bytes, kind: int = 2, round_: int = 3, base: int = 2) -> bytes:
    """What a member with a good key and bad intentions can send."""
    return seal(Frame(kind, RUN, 0, SERVER, round_, base, payload), KEYS[0])


@pytest.mark.parametrize(
    ("sender", "receiver", "to", "message"),
    [
        (CLIENT, SERVICE, SERVER, Join(4, -1)),
        (CLIENT, SERVICE, SERVER, update()),
        (CLIENT, SERVICE, SERVER, Leave(4, 3, "plan-used-up")),
        (SERVICE, CLIENT, 0, Model(2, 7, vector())),
        (SERVICE, CLIENT, 0, Acknowledgement(2, 7)),
        (SERVICE, CLIENT, 0, Refusal(2, 7, "other-content: ε")),
        (SERVICE, CLIENT, 0, Finished(2, 7, vector())),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_message_arrives_as_it_was(
    sender: Endpoint, receiver: Endpoint, to: int, message: object
) -> None:
    data = sender.seal(to, message)
    assert data == sender.seal(to, message)  # the same bytes for ever
    assert length_of(data[:HEADER_BYTES], receiver.limits) == len(data)
    who, found, digest, _ = receiver.open(data)
    assert who == sender.me and type(found) is type(message) and len(digest) == 16
    for each in fields(message):  # type: ignore[arg-type]
        np.testing.assert_array_equal(getattr(found, each.name), getattr(message, each.name))
    if hasattr(found, "vector"):
        assert not found.vector.flags.writeable


@pytest.mark.parametrize("base", [0, ANSWER, LAST])
def test_steps_that_are_no_exchanges_arrive(base: int) -> None:
    message = Weights(3, base, 0, 0, -1, vector())
    assert OTHER_WORKER.open(WORKER.seal(1, message)).message.base == base


def test_a_claim_on_somebody_needs_that_ones_signature() -> None:
    """A worker whose ledger was set back signs no more than it has; what it signed before tells."""
    counted = replace(OTHER_WORKER)  # its life before
    proof = WORKER.open(counted.seal(0, Hello(5, 0, 0))).proof
    assert proven(proof, RUN, 1, counted.key.public_key().public_bytes_raw()) == 5

    def said(known: int, proof: bytes) -> int:
        fresh = replace(OTHER_WORKER)  # the life after
        return fresh.open(WORKER.seal(1, Known(0, 0, known, 1, proof))).message.known

    assert [said(known, proof) for known in (0, 1, 5)] == [0, 1, 5]
    assert said(0, b"") == 0
    other_run = replace(OTHER_WORKER, run_id=OTHER_RUN)
    lies = {
        "more than was signed": (6, proof),
        "nothing shown": (1, b""),
        "somebody else's": (1, OTHER_WORKER.open(WORKER.seal(1, Hello(9, 0, 0))).proof),
        "another kind": (1, SERVICE.open(CLIENT.seal(SERVER, Join(9, 0))).proof),
        "another run": (1, replace(WORKER, run_id=other_run.run_id).open(
            other_run.seal(0, Hello(9, 0, 0))).proof),
    }  # fmt: skip
    changed = [
        (1, proof[:place] + bytes([proof[place] ^ 1]) + proof[place + 1 :])
        for place in range(PROOF_BYTES)
    ]
    for known, shown in [*lies.values(), *changed]:
        with pytest.raises(DecodeError, match="no signature of"):
            said(known, shown)


def test_what_a_member_has_just_signed_for_needs_no_proof() -> None:
    fresh = replace(OTHER_WORKER)
    fresh.seal(0, Hello(5, 0, 0))
    assert fresh.open(WORKER.seal(1, Known(0, 0, 5, 1))).message.known == 5
    fresh.seal(0, Join(7, 0))  # of another kind: its round is counted by nobody
    with pytest.raises(DecodeError, match="6 updates"):
        fresh.open(WORKER.seal(1, Known(0, 0, 6, 1)))


def test_no_kind_has_a_base_below_its_least() -> None:
    for sender, receiver, to, message in (
        (WORKER, OTHER_WORKER, 1, Weights(3, LAST - 1, 1, 0, -1, vector())),
        (WORKER, OTHER_WORKER, 1, Hello(3, ANSWER - 1, 0)),
        (CLIENT, SERVICE, SERVER, update(base=-2)),
    ):
        with pytest.raises(DecodeError, match="neither is"):
            receiver.open(sender.seal(to, message))


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, OVERHEAD, len(SENT) - 1])
def test_truncated(length: int) -> None:
    with pytest.raises(FrameError):
        SERVICE.open(SENT[:length])


def test_something_behind_it() -> None:
    with pytest.raises(FrameError, match="the header says"):
        SERVICE.open(SENT + b"\0")


def test_lying_length() -> None:
    for length in (0, 1, len(SENT), 2**63, 2**64 - 1):
        lying = bytearray(SENT)
        struct.pack_into("<Q", lying, LENGTH_AT, length)
        with pytest.raises(FrameError):
            SERVICE.open(bytes(lying))


def test_an_oversized_frame_is_refused_by_its_header_alone() -> None:
    header = bytearray(SENT[:HEADER_BYTES])
    struct.pack_into("<Q", header, LENGTH_AT, 1 << 40)
    tracemalloc.start()
    with pytest.raises(FrameError, match="at most"):
        length_of(header, SERVICE.limits)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("at", "value", "match"),
    [(0, 0, "does not begin"), (VERSION_AT, 2, "version 2"), (RESERVED_AT, 1, "reserved")],
)
def test_wrong_beginning(at: int, value: int, match: str) -> None:
    changed = bytearray(SENT)
    changed[at] = value
    with pytest.raises(FrameError, match=match):
        SERVICE.open(bytes(changed))


@pytest.mark.parametrize("kind", [0, 4, 5, 6, 7, 31, 255])
def test_wrong_kind_even_when_it_is_signed(kind: int) -> None:
    """Unknown kinds, and those that only the server sends, so that nothing is reflected."""
    with pytest.raises(FrameError, match="not expected"):
        SERVICE.open(signed_again(b"", kind))
    with pytest.raises(FrameError, match="not expected"):
        CLIENT.open(SENT)


def test_unknown_sender() -> None:
    stranger = Ed25519PrivateKey.generate()
    for place in (2, -1, -2, 2**40):
        data = seal(Frame(2, RUN, place, SERVER, 3, 2, b""), stranger)
        with pytest.raises(ForgeryError, match="unknown sender"):
            SERVICE.open(data)


def test_forged_sender() -> None:
    """Client 1 in client 0's name; and client 0's frame with client 1's name put in."""
    data = seal(Frame(2, RUN, 0, SERVER, 3, 2, encode(update(), ("round", "base"))), KEYS[1])
    with pytest.raises(ForgeryError, match="that of 0"):
        SERVICE.open(data)
    renamed = bytearray(SENT)
    struct.pack_into("<q", renamed, 48, 1)
    with pytest.raises(ForgeryError, match="that of 1"):
        SERVICE.open(bytes(renamed))


def test_one_bit_flipped_anywhere() -> None:
    for position in range(len(SENT)):
        for bit in range(8):
            changed = bytearray(SENT)
            changed[position] ^= 1 << bit
            with pytest.raises(FrameError):
                SERVICE.open(bytes(changed))


def test_a_signature_is_verified_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("forethought.exchange.messages.decode", never)
    forged = SENT[:-1] + bytes([SENT[-1] ^ 1])
    with pytest.raises(ForgeryError):
        SERVICE.open(forged)


def test_other_run() -> None:
    with pytest.raises(FrameError, match="belongs to run"):
        SERVICE.open(endpoint(0, OTHER_RUN).seal(SERVER, update()))


def test_what_is_for_somebody_else() -> None:
    """An acknowledgement for client 0 does not make client 1 forget its update."""
    data = SERVICE.seal(0, Acknowledgement(2, 7))
    with pytest.raises(FrameError, match="for 0, not"):
        OTHER.open(data)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (update(vector=vector(1, 2)), "2 entries"),
        (update(vector=vector(1, 2, 3, 4, float("nan"))), "NaN"),
        (update(vector=vector(1, 2, 3, 4, float("-inf"))), "NaN or ∞"),
        (update(vector=vector(0, 0, 3e38, 0, 0)), "norm 3e\\+38"),
        (update(vector=vector(3e38, 3e38, -3e38, 3e38, 3e38)), "norm"),
        (update(vector=vector(0, 0, 0, 0, 10.1)), "stays below 10"),
        (update(round=-1), "negative"),
        (update(base=-2), "negative"),
    ],
)
def test_an_honest_signature_under_bad_content(bad: Update, match: str) -> None:
    with pytest.raises(DecodeError, match=match):
        SERVICE.open(CLIENT.seal(SERVER, bad))


def test_other_precision_and_other_payloads() -> None:
    double = b"d" + struct.pack("<Q", D) + np.ones(D, "<f8").tobytes()
    whole = b"l" + struct.pack("<Q", D) + np.ones(D, "<i8").tobytes()
    good = encode(update(), ("round", "base"))
    for payload, match in (
        (double[:29], "is float32, here is something else"),
        (whole[:29], "is float32, here is int64"),
        (b"", "here is nothing"),
        (good[:5], "cut off"),
        (b"f" + struct.pack("<Q", 2**62) + bytes(8), "not there"),
        (good[:-4], "not there"),
        (b"f" + struct.pack("<Q", D - 1) + good[9:], "4 entries"),
    ):
        with pytest.raises(DecodeError, match=match):
            SERVICE.open(signed_again(payload))
    with pytest.raises(DecodeError, match="4 bytes follow"):
        decode(Update, encode(update()) + bytes(4))
    with pytest.raises(DecodeError, match="no text"):
        text = b"s" + struct.pack("<Q", 2) + b"\xff\xff"
        SERVICE.open(signed_again(text, kind=3))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([1, 2, 3]))
def test_any_signed_payload_is_a_message_or_refused(payload: bytes, kind: int) -> None:
    try:
        message = SERVICE.open(signed_again(payload, kind)).message
    except (DecodeError, FrameError):
        return
    assert encode(message, ("round", "base")) == payload


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        SERVICE.open(data)
    with pytest.raises(FrameError):
        SERVICE.open(SENT[:HEADER_BYTES] + data)


def test_registered_kinds_go_both_ways_and_others_cannot_be_sent() -> None:
    assert set(CLIENT.limits) | set(SERVICE.limits) == set(KINDS)
    with pytest.raises(ValueError, match="no registered message"):
        CLIENT.seal(SERVER, object())


def test_open_frame_needs_the_key_of_the_place_not_any_key() -> None:
    assert open_frame(SENT, RUN, SERVER, {0: RAW[0]}, {2: 1000}).round == 3
    with pytest.raises(ForgeryError):
        open_frame(SENT, RUN, SERVER, {0: RAW[1], 1: RAW[0]}, {2: 1000})


def test_a_message_has_one_form_where_its_later_field_is_empty() -> None:
    message = Known(1, 2, 3, 1)
    payload = encode(message)
    assert decode(Known, payload).proof == b"" and encode(decode(Known, payload)) == payload
    assert decode(Known, encode(replace(message, proof=b"x"))).proof == b"x"
    tag = encode(replace(message, proof=b"x"))[len(payload) :][:1]
    with pytest.raises(DecodeError, match="left out"):
        decode(Known, payload + tag + bytes(8))

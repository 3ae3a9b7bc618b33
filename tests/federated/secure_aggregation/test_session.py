"""Whole secure rounds, with clients that vanish, lie and look."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forethought.exchange.events import Alarm, Received, Send, Woken
from forethought.exchange.messages import SERVER
from forethought.federated.secure_aggregation import masking
from forethought.federated.secure_aggregation.masking import (
    SecureAggregation,
    SecureAggregationError,
    from_ring,
    pack,
    to_ring,
    unpack,
)
from forethought.federated.secure_aggregation.protocol import (
    Aggregator,
    MaskedSum,
    MaskKeys,
    MaskRoster,
    MaskShares,
    Participant,
    Survivors,
    Unmasking,
    about,
    attempted,
    secure_sum,
)

STEP, SIZE = 2.0**-10, 50
STEPS = (MaskKeys, MaskShares, MaskedSum, Unmasking)


def sums(clients: int, seed: int = 0) -> dict[int, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {client: generator.integers(-5000, 5000, SIZE) * STEP for client in range(clients)}


def test_the_sum_is_exact():
    given = sums(7)
    total, survivors = secure_sum(SecureAggregation(7, 1, 1), given, STEP)
    assert survivors == tuple(range(7))
    assert np.array_equal(total, sum(given.values()))


@pytest.mark.parametrize("at", list(itertools.product(STEPS, STEPS)), ids=lambda pair: "")
def test_clients_may_vanish_at_any_step(at):
    given = sums(8, 3)
    vanish = dict(zip((2, 5), at, strict=True))
    total, survivors = secure_sum(
        SecureAggregation(8, 2, 1),
        given,
        STEP,
        lost=lambda sender, message: type(message) is vanish.get(sender),
    )
    # Who vanished before its sum came is not in it; who vanished after, is.
    assert set(range(8)) - set(survivors) == {
        client for client, kind in vanish.items() if kind is not Unmasking
    }
    assert np.array_equal(total, sum(given[client] for client in survivors))


@pytest.mark.parametrize("kind", STEPS)
def test_with_more_drop_outs_the_round_is_lost_and_nothing_is_revealed(kind):
    with pytest.raises(SecureAggregationError, match="nothing was revealed"):
        secure_sum(
            SecureAggregation(8, 2, 1),
            sums(8),
            STEP,
            lost=lambda sender, message: sender < 3 and type(message) is kind,
        )


@pytest.mark.slow
def test_what_the_server_sees_of_one_client_is_uniform():
    """Its masked sum over many rounds; a false alarm once in 10⁵ runs by a χ² bound."""
    bits, rounds, size = 8, 150, 64
    seen = np.zeros(256)
    for round in range(rounds):
        cohort = _Cohort(SecureAggregation(4, 0, 0, bits), round, size)
        cohort.until(MaskedSum, {c: np.full(size, 7, np.uint64) for c in range(4)})
        content = cohort.sent[MaskedSum][1].content.tobytes()
        seen += np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    expected = rounds * size / 256
    statistic = float(((seen - expected) ** 2 / expected).sum())
    assert (
        statistic < 386
    )  # Laurent and Massart 2000: P(χ²₂₅₅ ≥ 255 + 2√(255x) + 2x) ≤ e^−x, x = 11.5


class _Cohort:
    """Participants and a server whose messages a test looks at."""

    def __init__(self, chosen: SecureAggregation, round: int = 0, size: int = SIZE) -> None:
        self.keys = {c: Ed25519PrivateKey.generate() for c in range(chosen.clients)}

        def verify(client: int, content: bytes, signature: bytes) -> bool:
            try:
                self.keys[client].public_key().verify(signature, content)
            except Exception:
                return False
            return True

        self.server = Aggregator(chosen, bytes(32), round, range(chosen.clients), size)
        self.clients = {
            c: Participant(
                chosen, bytes(32), round, c, secrets.token_bytes, self.keys[c].sign, verify
            )
            for c in range(chosen.clients)
        }
        self.sent: dict[type, dict[int, object]] = {}
        self.alarms: list[str] = []
        self.delivered: list[tuple[int, object]] = []

    def until(self, kind: type, elements: dict[int, np.ndarray]) -> None:
        """Run until every client has sent a message of this kind; the server has seen none."""
        self.server.begin(0.0)
        effects = [(c, e) for c, one in self.clients.items() for e in one.begin()]
        for c, one in self.clients.items():
            effects += [(c, e) for e in one.contribute(elements[c])]
        while effects:
            sender, effect = effects.pop(0)
            if isinstance(effect, Alarm):
                self.alarms.append(effect.code)
            if not isinstance(effect, Send):
                continue
            if sender != SERVER:
                self.sent.setdefault(type(effect.message), {})[sender] = effect.message
                if type(effect.message) is kind:
                    continue
                found = self.server.handle(Received(sender, effect.message, 0.0))
                effects += [(SERVER, e) for e in found]
            else:
                self.delivered.append((effect.to, effect.message))
                found = self.clients[effect.to].handle(Received(SERVER, effect.message, 0.0))
                effects += [(effect.to, e) for e in found]


def _elements(clients: int, bits: int = 48) -> dict[int, np.ndarray]:
    return {c: to_ring(v, STEP, bits) for c, v in sums(clients).items()}


def test_a_server_that_swaps_keys_is_noticed():
    cohort = _Cohort(SecureAggregation(4, 0, 0))
    own = masking.public_key(bytes(range(32)))
    messages = {c: one.begin()[0].message for c, one in cohort.clients.items()}
    roster = MaskRoster(
        0,
        0,
        0,
        np.arange(4),
        messages[0].keys + own + own + messages[2].keys + messages[3].keys,
        b"".join(message.signature for message in messages.values()),
    )
    effects = cohort.clients[0].handle(Received(SERVER, roster, 0.0))
    assert [type(effect) for effect in effects] == [Alarm]
    assert "keys of client 1" in effects[0].text


def test_a_client_answers_one_list_of_survivors_and_a_long_enough_one():
    cohort = _Cohort(SecureAggregation(6, 1, 1))
    cohort.until(MaskedSum, _elements(6))
    client = cohort.clients[0]

    def answer(survivors):
        return client.handle(Received(SERVER, Survivors(0, 0, 0, np.array(survivors)), 0.0))

    assert "4 clients survived" in answer([0, 1, 2, 3])[0].text  # five are agreed on
    first = answer([0, 1, 2, 3, 4])
    assert isinstance(first[0].message, Unmasking)
    assert answer([0, 1, 2, 3, 4])[0].message is first[0].message
    assert "second list" in answer([0, 1, 2, 3, 5])[0].text


def test_no_client_reveals_both_shares_of_another():
    cohort = _Cohort(SecureAggregation(5, 1, 0))
    cohort.until(MaskedSum, _elements(5))
    held = dict(cohort.clients[0]._held)
    survivors = Survivors(0, 0, 0, np.array([0, 1, 2, 4]))
    answer = cohort.clients[0].handle(Received(SERVER, survivors, 0.0))[0].message
    pieces = [answer.shares[32 * i : 32 * i + 32] for i in range(5)]
    assert pieces == [held[c][1 if c == 3 else 0] for c in range(5)]


def test_a_second_sum_or_roster_or_altered_shares_are_refused():
    cohort = _Cohort(SecureAggregation(4, 0, 0))
    cohort.until(MaskedSum, _elements(4))
    with pytest.raises(SecureAggregationError, match="has its sum"):
        cohort.clients[0].contribute(_elements(4)[0])
    roster = next(m for to, m in cohort.delivered if isinstance(m, MaskRoster))
    other = MaskRoster(0, 0, 0, np.arange(3), roster.keys[:192], roster.signatures[:192])
    assert isinstance(cohort.clients[0].handle(Received(SERVER, other, 0.0))[0], Alarm)
    fresh = _Cohort(SecureAggregation(4, 0, 0))
    fresh.until(MaskShares, _elements(4))
    shares = fresh.sent[MaskShares]
    for sender, message in shares.items():
        damaged = bytearray(message.sealed)
        damaged[5] ^= 1
        changed = replace(message, sealed=bytes(damaged)) if sender == 1 else message
        effects = fresh.server.handle(Received(sender, changed, 0.0))
    found = [
        fresh.clients[e.to].handle(Received(SERVER, e.message, 0.0))
        for e in effects
        if isinstance(e, Send) and e.to == 0
    ]
    assert "altered" in found[0][0].text


def test_bad_keys_leave_their_client_out_at_once():
    cohort = _Cohort(SecureAggregation(4, 1, 0))
    keys = {c: one.begin()[0].message for c, one in cohort.clients.items()}
    for sender in (1, 2, 3):
        assert cohort.server.handle(Received(sender, keys[sender], 0.0)) == []
    found = cohort.server.handle(Received(0, replace(keys[0], keys=bytes(63)), 0.0))
    assert isinstance(found[0], Alarm) and found[0].code == "secure-malformed"
    assert cohort.server.roster == (1, 2, 3)  # nobody waited for its patience


def test_stray_messages_change_nothing():
    cohort = _Cohort(SecureAggregation(4, 1, 0))
    cohort.until(MaskedSum, _elements(4))
    masked = cohort.sent[MaskedSum]
    short = replace(masked[0], content=masked[0].content[:-1])
    assert cohort.server.handle(Received(0, short, 0.0))[0].code == "secure-malformed"
    assert cohort.server.handle(Received(0, replace(masked[0], base=1), 0.0)) == []
    assert cohort.server.handle(Received(9, masked[0], 0.0)) == []
    assert cohort.server.handle(Received(0, "text", 0.0)) == []
    early = cohort.server.handle(Woken(1.0))
    assert len(early) == 1 and cohort.server.total is None
    later = replace(Survivors(0, 0, 0, np.arange(4)), base=3)
    assert cohort.clients[0].handle(Received(SERVER, later, 0.0))[0].code == "secure-stray"
    assert cohort.clients[0].handle(Received(1, masked[0], 0.0))[0].code == "secure-stray"
    assert cohort.clients[0].handle(Received(SERVER, masked[1], 0.0))[0].code == "secure-kind"
    for sender, message in masked.items():
        effects = cohort.server.handle(Received(sender, message, 0.0))
    for effect in [e for e in effects if isinstance(e, Send)]:
        answers = cohort.clients[effect.to].handle(Received(SERVER, effect.message, 0.0))
        done = cohort.server.handle(Received(effect.to, answers[0].message, 0.0))
    assert done[-1].reason == "secure-opened"
    total = from_ring(cohort.server.total, STEP, 48)
    assert np.array_equal(total, sum(sums(4).values()))


def test_a_false_share_of_a_dropped_clients_key_loses_the_round():
    cohort = _Cohort(SecureAggregation(5, 1, 0))
    cohort.until(MaskedSum, _elements(5))
    for sender in range(4):
        cohort.server.handle(Received(sender, cohort.sent[MaskedSum][sender], 0.0))
    effects = cohort.server.handle(Woken(1e9))
    for effect in [e for e in effects if isinstance(e, Send)]:
        answer = cohort.clients[effect.to].handle(Received(SERVER, effect.message, 0.0))[0].message
        if effect.to == 0:
            answer = replace(answer, shares=answer.shares[:-1] + bytes([answer.shares[-1] ^ 1]))
        done = cohort.server.handle(Received(effect.to, answer, 0.0))
    assert cohort.server.total is None and done[-1].reason == "secure-lost"


def test_a_client_accuses_nobody_outside_its_round():
    cohort = _Cohort(SecureAggregation(4, 1, 0))
    cohort.until(MaskedSum, _elements(4))
    everybody = MaskShares(0, 0, 0, np.arange(100_000), b"")
    assert len(cohort.server.handle(Received(0, everybody, 0.0))) <= 4
    assert len(cohort.server.blamed) <= 4


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((4, 2, 1), "would be left"),
        ((4, 2, 0), "two sums"),
        ((10, 4, 2), "two sums"),
        ((1, 0, 0), "at least 2"),
        ((300, 0, 0), "at most 255"),
    ],
)
def test_settings_that_cannot_protect_are_refused(numbers, words):
    with pytest.raises(ValueError, match=words):
        SecureAggregation(*numbers)


def test_settings_say_what_the_issue_says():
    ten = SecureAggregation(10, dropouts=2, colluders=2)
    assert (ten.threshold, ten.honest) == (8, 6)
    assert ten.noise_share == pytest.approx(6**-0.5)
    assert SecureAggregation.from_dict(ten.to_dict()) == ten
    assert masking.SecureAggregation(10, 2, 0).honest == 8


def test_masks_of_one_pair_cancel_and_are_not_zero():
    total = np.zeros(70_000, np.uint64)
    masking.add_mask(total, bytes(32), 1, 40)
    assert len(np.unique(total)) > 69_900
    masking.add_mask(total, bytes(32), -1, 40)
    assert not total.any()
    assert unpack(pack(total, 40), 40, 70_000).sum() == 0


def test_keys_of_small_order_are_refused():
    with pytest.raises(SecureAggregationError, match="X25519"):
        masking.agree(bytes(range(32)), bytes(32), b"")


def test_no_key_serves_two_attempts_rounds_or_pairs():
    """Even a client whose entropy repeats itself masks otherwise in every attempt."""
    seen = {attempted(bytes(32), attempt) for attempt in range(100)}
    assert len(seen) == 100 and attempted(bytes([1] * 32), 0) not in seen
    private, other = bytes(range(32)), masking.public_key(bytes(range(1, 33)))
    keys = {
        masking.agree(private, other, about(attempted(bytes(32), attempt), round, 1, who) + use)
        for attempt in (0, 1)
        for round in (0, 1)
        for who in (2, 3)
        for use in (b"seal", b"mask")
    }
    assert len(keys) == 16


@pytest.mark.parametrize("kind", STEPS)
def test_nobody_waits_for_whoever_sent_something_malformed(kind):
    cohort = _Cohort(SecureAggregation(4, 1, 0))
    cohort.until(kind, _elements(4))
    step = {
        MaskKeys: "keys",
        MaskShares: "sealed",
        MaskedSum: "content",
        Unmasking: "shares",
    }[kind]
    bad = replace(cohort.sent[kind][0], **{step: getattr(cohort.sent[kind][0], step)[:-1]})
    cohort.server.handle(Received(0, bad, 0.0))
    for sender in (1, 2, 3):
        effects = cohort.server.handle(Received(sender, cohort.sent[kind][sender], 0.0))
    assert len(effects) > 1 or cohort.server.total is not None


def test_a_round_may_have_any_number_of_an_attempt():
    assert len({attempted(bytes(32), attempt) for attempt in (-(2**63), -1, 0, 2**63 - 1)}) == 4

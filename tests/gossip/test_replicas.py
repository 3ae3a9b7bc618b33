from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from workers import gossip, plan

from forethought.gossip import events as on
from forethought.gossip.compression import START, Compression, Link
from forethought.holders.simulator import worker

FEW = Compression("top-k", 0.3)
D = 10


@pytest.mark.parametrize("seed", range(20))
def test_both_ends_have_the_same_whatever_is_lost_doubled_or_late(seed: int) -> None:
    draw = np.random.default_rng(seed)
    start = draw.normal(size=D).astype(np.float32)
    ends = [Link(start, 4), Link(start, 4)]
    ways: list[list[Any]] = [[], []]
    there: dict[tuple[int, int], Any] = {}
    taken = refused = 0
    for step in range(400):
        if draw.random() < 0.02:  # one is killed, and begins again
            ends[int(draw.integers(2))] = Link(start, 4)
        for k, end in enumerate(ends):
            of, heard = end.of, end.heard
            held = draw.normal(size=D).astype(np.float32)
            change, there[k, step] = end.change(step, held, FEW)
            assert np.count_nonzero(change) <= 3
            if draw.random() > 0.2:
                ways[k] += [(step, of, heard, change)] * (1 + int(draw.random() < 0.2))
        for k, end in enumerate(ends):
            way = ways[1 - k]
            while way and draw.random() < 0.8:
                message = way.pop(int(draw.integers(min(3, len(way)))))
                found = end.received(*message)
                refused += found is None
                if found is not None:
                    taken += 1
                    np.testing.assert_array_equal(found, there[1 - k, message[0]])
    assert taken > 300 and refused < taken / 3


def test_what_is_left_out_comes_later() -> None:
    start = np.zeros(D, dtype=np.float32)
    one, other = Link(start, 4), Link(start, 4)
    held = np.arange(1, D + 1, dtype=np.float32)
    found = start
    for step in range(4):
        for sender, receiver in ((one, other), (other, one)):
            of, heard = sender.of, sender.heard
            change, _ = sender.change(step, held, FEW)
            got = receiver.received(step, of, heard, change)
            assert got is not None
            found = got if receiver is other else found
    assert other.heard == 3 and one.of == 3 > START
    np.testing.assert_array_equal(found, held)


@pytest.mark.parametrize("kind", ["matchings", "metropolis"])
def test_few_changes_a_message_keep_the_mean_and_agree(kind: str) -> None:
    """Everybody has another model, and only averages from then on."""
    workers, parameters = 6, 12
    agreed = gossip(
        workers, 1, "ring", kind,
        compression=Compression("top-k", 0.25), plans=(plan(1),), parameters=parameters,
        settle=3000,
    )  # fmt: skip
    machines = [worker(agreed, k, np.zeros(parameters, np.float32)) for k in range(workers)]
    draw = np.random.default_rng(1)
    means = draw.normal(size=(workers, parameters)).astype(np.float32)
    post: list[tuple[int, Any]] = []

    def act(k: int, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, on.Send):
                post.append((effect.to, on.PeerMessage(k, effect.message)))

    for k, machine in enumerate(machines):
        machine.handle(on.Started())
        machine.handle(on.GradientDone(0, means[k], 1, b"", b"s"))
    before = np.array([one.weights for one in machines])
    for step in range(600):
        for k, machine in enumerate(machines):
            act(k, machine.handle(on.Mix(step)))
        while post:
            to, event = post.pop(int(draw.integers(len(post))))
            act(to, machines[to].handle(event))
    after = np.array([one.weights for one in machines])
    np.testing.assert_allclose(after.mean(0), before.mean(0), atol=1e-4)
    assert np.ptp(after, axis=0).max() < 0.02 * np.ptp(before, axis=0).max()

"""D-PSGD and SYNC, against the same computed with matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from workers import D, done, gossip, of, plan

import forethought as ft
from forethought.exchange.events import Alarm
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.compression import Compression
from forethought.gossip.events import Weights
from forethought.gossip.gossip import Member
from forethought.holders.simulator import worker
from trials.recorded import Recorded, event_bytes, event_of, replayed

K, ROUNDS, RATE = 6, 5, 0.5


def updates() -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(3).normal(size=(ROUNDS, K, D)).astype(np.float32).astype(float)


def driven(seed: int, **changes: Any) -> tuple[Any, list[Recorded]]:
    """Everybody to the end, things happening in a drawn order."""
    draw = np.random.default_rng(seed)
    agreed = gossip(K, ROUNDS, **changes)
    start = np.array([0.0, 1, 2], dtype=np.float32)
    machines = [Recorded(worker(agreed, k, start)) for k in range(K)]
    means = updates()
    todo: list[tuple[int, on.Event]] = [(k, on.Started()) for k in range(K)]
    reduced: dict[int, Any] = {}
    while todo:
        k, event = todo.pop(int(draw.integers(len(todo))))
        for effect in machines[k].handle(event):
            assert not isinstance(effect, Alarm)
            if isinstance(effect, on.Send):
                todo.append((effect.to, on.PeerMessage(k, effect.message)))
            elif isinstance(effect, on.ComputeGradient):
                todo.append((k, done(effect.round, *means[effect.round, k])))
            elif isinstance(effect, on.AllReduce):
                reduced[k] = effect.vector
                if len(reduced) == K:
                    mean = np.mean(list(reduced.values()), axis=0).astype(np.float32)
                    todo += [(one, on.Reduced(effect.round, mean)) for one in range(K)]
                    reduced.clear()
    assert {machine.finished for machine in machines} == {"rounds"}
    return agreed, machines


@pytest.mark.parametrize(("graph", "kind"), [("complete", "matchings"), ("ring", "metropolis")])
def test_a_neighbour_that_is_ahead_of_all_it_can_be_is_not_listened_to(
    graph: str, kind: str
) -> None:
    agreed = gossip(4, 60, graph, kind, rule="synchronous")
    start = np.zeros(D, dtype=np.float32)
    machine = worker(agreed, 0, start)
    machine.handle(on.Started())
    peer = agreed.mixing.graph.neighbours(0)[0]
    alarms = [
        bool(of(machine.handle(on.PeerMessage(peer, Weights(0, base, 0, 0, -1, start))), Alarm))
        for base in range(60)
    ]
    kept = alarms.count(False)
    assert 2 <= kept < 12 and alarms == [False] * kept + [True] * (60 - kept)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("graph", "kind"),
    [("complete", "matchings"), ("ring", "metropolis"), ("exponential", "exponential")],
)
def test_d_psgd_is_its_matrices(graph: str, kind: str, seed: int) -> None:
    agreed, machines = driven(seed, graph=graph, kind=kind, rule="synchronous")
    held = np.tile([0.0, 1, 2], (K, 1))
    for round, means in enumerate(updates()):
        matrix = np.zeros((K, K))
        for k in range(K):
            for other, weight in agreed.mixing.weights(round, k).items():
                matrix[k, other] = float(weight)
        held = matrix @ held - RATE * means
    assert np.array([machine.weights for machine in machines]) == pytest.approx(held, abs=1e-5)


@pytest.mark.parametrize(
    ("schedule", "shape"),
    [
        (ft.Schedule("cosine"), [(1 + np.cos(np.pi * t / ROUNDS)) / 2 for t in range(ROUNDS)]),
        (ft.Schedule("stages", 0.1, stages=(0.6,)), [1, 1, 1, 0.1, 0.1]),
        (ft.Schedule("inverse", 0.5), [1 / (1 + t / 2) for t in range(ROUNDS)]),
    ],
)
def test_a_schedule_ends_with_the_rounds_that_all_make(
    schedule: ft.Schedule, shape: list[float]
) -> None:
    """Plans have four times as many rounds, which nobody makes."""
    _, machines = driven(0, rule="allreduce", plans=(plan(4 * ROUNDS, schedule=schedule),))
    expected = np.array([0.0, 1, 2]) - RATE * np.array(shape) @ updates().mean(1)
    assert np.array([machine.weights for machine in machines]) == pytest.approx(
        np.tile(expected, (K, 1)), abs=1e-5
    )


@pytest.mark.parametrize("seed", range(3))
def test_several_exchanges_a_round_mix_after_the_step(seed: int) -> None:
    agreed, machines = driven(
        seed, graph="ring", kind="metropolis", rule="synchronous", exchanges=3
    )
    matrix = np.array(
        [[float(agreed.mixing.weights(0, k).get(j, 0)) for j in range(K)] for k in range(K)]
    )
    held = np.tile([0.0, 1, 2], (K, 1))
    for means in updates():
        held = matrix @ matrix @ (matrix @ held - RATE * means)
    assert np.array([machine.weights for machine in machines]) == pytest.approx(held, abs=1e-5)
    with pytest.raises(ValueError, match="the rule 'synchronous'"):
        gossip(K, ROUNDS, exchanges=2)


@pytest.mark.parametrize(
    ("graph", "kind", "compression"),
    [
        ("ring", "metropolis", Compression("bf16")),
        ("exponential", "exponential", Compression("bf16")),
        ("ring", "metropolis", Compression("top-k", 0.4)),
        ("complete", "matchings", Compression("top-k", 0.4)),
    ],
)
def test_compressed_exchanges_keep_the_mean_and_agree(
    graph: str, kind: str, compression: Compression
) -> None:
    """The average model is that of exact exchanges, whatever was left out; and all come to it."""
    _, machines = driven(
        2, graph=graph, kind=kind, rule="synchronous", compression=compression, exchanges=40
    )
    models = np.array([machine.weights for machine in machines])
    expected = np.array([0.0, 1, 2]) - RATE * updates().mean(1).sum(0)
    assert models.mean(0) == pytest.approx(expected, abs=1e-4)
    # bf16 stops where both ends round to the same numbers.
    assert np.abs(models - models.mean(0)).max() < 0.02


def test_compression_goes_where_it_can() -> None:
    few = Compression("top-k", 0.4)
    for changes, says in (
        ({"rule": "allreduce", "compression": Compression("bf16")}, "between neighbours"),
        ({"rule": "asynchronous", "tracking": True, "compression": few}, "without tracking"),
        ({"rule": "synchronous", "tracking": True, "compression": few}, "without tracking"),
        (
            {
                "rule": "synchronous",
                "kind": "exponential",
                "graph": "exponential",
                "compression": few,
            },
            "both ends of a link",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            gossip(K, ROUNDS, **changes)
    agreed = gossip(K, ROUNDS, compression=Compression("bf16"))
    assert type(agreed).from_dict(agreed.to_dict()) == agreed


@pytest.mark.parametrize("changes", [{}, {"momentum": 0.5}])
def test_steps_by_size_are_weighted_means(changes: Any) -> None:
    plans = (plan(ROUNDS, examples=40), plan(ROUNDS, examples=80))
    members = tuple(Member(f"w{k}", k % 2) for k in range(K))
    _, machines = driven(
        2, rule="allreduce", plans=plans, members=members, weights="size", **changes
    )
    shares = np.array([2 / 3, 4 / 3] * (K // 2))
    weighted = (updates() * shares[None, :, None]).mean(1)
    velocity, total = np.zeros(D), np.zeros(D)
    for mean in weighted:
        velocity = changes.get("momentum", 0.0) * velocity + mean
        total += velocity
    expected = np.array([0.0, 1, 2]) - RATE * total
    assert machines[0].weights == pytest.approx(expected, abs=1e-5)


def test_gradient_tracking_is_its_matrices() -> None:
    agreed, machines = driven(1, graph="ring", kind="metropolis", rule="synchronous", tracking=True)
    matrix = np.array(
        [[float(agreed.mixing.weights(0, k).get(j, 0)) for j in range(K)] for k in range(K)]
    )
    held, tracked, last = np.tile([0.0, 1, 2], (K, 1)), np.zeros((K, D)), np.zeros((K, D))
    for means in updates():
        fresh = means - last
        held = matrix @ held - RATE * (tracked + fresh)
        tracked = matrix @ tracked + fresh
        last = means
    assert np.array([machine.weights for machine in machines]) == pytest.approx(held, abs=1e-5)
    # The average of what is tracked is the average of the newest updates.
    assert tracked.mean(0) == pytest.approx(last.mean(0))


def test_sync_is_one_machine_with_the_mean_of_all() -> None:
    _, machines = driven(2, rule="allreduce")
    expected = np.array([0.0, 1, 2]) - RATE * updates().mean(1).sum(0)
    for machine in machines:
        assert machine.weights == pytest.approx(expected, abs=1e-5)
        assert machine.weights.tolist() == machines[0].weights.tolist()


@pytest.mark.parametrize("rule", ["synchronous", "allreduce", "asynchronous"])
def test_recorded_events_played_again_give_the_same_effects(rule: str) -> None:
    if rule == "asynchronous":
        agreed = gossip(2, 3, settle=1)
        one = Recorded(worker(agreed, 0, np.zeros(D, np.float32)))
        other = Weights(0, 0, 0, 5, -1, np.ones(D, np.float32))
        for event in (
            on.Started(),
            on.Mix(0),
            done(0, 1, 2, 3),
            on.PeerMessage(1, other),
            on.PeerLost(1),
            on.Mix(1),
            on.PeerBack(1),
            on.Stop(),
        ):
            one.handle(event)
        machines = [one]
    else:
        agreed, machines = driven(4, rule=rule)
    start = np.array([0.0, 1, 2] if rule != "asynchronous" else [0, 0, 0], dtype=np.float32)
    for k, machine in enumerate(machines):
        assert [event_bytes(event_of(data)) for data in machine.events] == machine.events
        assert replayed(worker(agreed, k, start), machine.events) == machine.digest
        # A single event less is noticed.
        if len(machine.events) > 2:
            fewer = machine.events[:1] + machine.events[2:]
            assert replayed(worker(agreed, k, start), fewer) != machine.digest


def test_a_neighbours_nonsense_is_refused() -> None:
    machine = worker(gossip(4, rule="synchronous"), 0, np.zeros(D, np.float32))
    sends = machine.handle(on.Started())
    other = next(effect.to for effect in sends if isinstance(effect, on.Send))
    bad = Weights(0, 0, 0, 0, -1, np.array([np.nan, 0, 0], np.float32))
    assert of(machine.handle(on.PeerMessage(other, bad)), Alarm)[0].code == "weights"
    assert of(machine.handle(on.PeerMessage(0, bad)), Alarm)[0].code == "stranger"


def test_changes_that_add_up_to_nonsense_are_refused() -> None:
    """Each is short enough by itself; the honest one is waited for."""
    agreed = gossip(2, kind="metropolis", rule="synchronous", compression=Compression("top-k", 1.0))
    machine = worker(agreed, 0, np.zeros(D, np.float32))
    machine.handle(on.Started())

    def told(round: int, *change: float) -> list[Any]:
        message = Weights(round + 1, round, 0, 0, -1, np.array(change, np.float32))
        return machine.handle(on.PeerMessage(1, message))

    machine.handle(done(0, 0, 0, 0))
    assert of(told(0, 9e5, 0, 0), on.Mixed)
    machine.handle(done(1, 0, 0, 0))
    (alarm,) = told(1, 9e5, 0, 0)
    assert alarm.code == "weights" and "norm 1.8e+06" in alarm.text
    assert of(told(1, -9e5, 0, 0), on.Mixed)
    assert np.isfinite(machine.weights).all()


class Disturbed:
    """D-PSGD among workers that die between any two effects, over ways that lose messages."""

    def __init__(self, seed: int, exchanges: int, kind: str, graph: str) -> None:
        self.draw = np.random.default_rng(seed)
        rule = "synchronous"
        self.agreed = gossip(K, ROUNDS, graph, kind, rule=rule, exchanges=exchanges)
        self.start = np.array([0.0, 1, 2], dtype=np.float32)
        self.ledgers = [LedgerState() for _ in range(K)]
        self.machines = [worker(self.agreed, k, self.start, LedgerState()) for k in range(K)]
        self.todo: list[tuple[int, Any]] = [(k, on.Started()) for k in range(K)]
        self.deaths, self.means = 0, updates()
        self.asked: dict[tuple[int, int], bytes] = {}

    def run(self) -> Any:
        ticks = 0
        while any(one.finished is None for one in self.machines):
            if not self.todo:
                ticks += 1
                assert ticks < 1000
                self.todo = [(k, on.Mix(ticks)) for k in range(K)]
            k, event = self.todo.pop(int(self.draw.integers(len(self.todo))))
            for effect in self.machines[k].handle(event):
                assert not isinstance(effect, Alarm)
                self.act(k, effect)
                if self.draw.random() < 0.02:
                    self.die(k)
                    break
        return np.array([one.weights for one in self.machines])

    def act(self, k: int, effect: Any) -> None:
        if isinstance(effect, on.Send) and self.draw.random() > 0.1:
            self.todo.append((effect.to, on.PeerMessage(k, effect.message)))
        elif isinstance(effect, on.ComputeGradient):
            # However often a gradient is computed, it is the same one.
            bits = effect.weights.tobytes()
            assert self.asked.setdefault((k, effect.round), bits) == bits
            self.todo.append((k, done(effect.round, *self.means[effect.round, k])))
        elif isinstance(effect, on.Commit):
            kept = (*self.ledgers[k].outgoing, effect.release.update)
            self.ledgers[k] = LedgerState(effect.release.round + 1, outgoing=kept)
        elif isinstance(effect, on.Acknowledged):
            kept = tuple(one for one in self.ledgers[k].outgoing if one.round > effect.round)
            self.ledgers[k] = LedgerState(self.ledgers[k].updates, outgoing=kept)

    def die(self, k: int) -> None:
        self.deaths += 1
        self.todo = [(to, event) for to, event in self.todo if to != k]
        self.machines[k] = worker(self.agreed, k, self.start, self.ledgers[k])
        self.todo.append((k, on.Started(1)))


@pytest.mark.parametrize(
    ("exchanges", "kind", "graph"),
    [
        (1, "matchings", "complete"),
        (1, "metropolis", "ring"),
        (3, "metropolis", "ring"),
        (1, "exponential", "exponential"),
    ],
)
def test_no_death_and_no_lost_message_changes_a_bit(exchanges: int, kind: str, graph: str) -> None:
    _, calm = driven(0, rule="synchronous", exchanges=exchanges, kind=kind, graph=graph)
    expected = np.array([one.weights for one in calm])
    deaths = 0
    for seed in range(12):
        trial = Disturbed(seed, exchanges, kind, graph)
        np.testing.assert_array_equal(trial.run(), expected)
        deaths += trial.deaths
    assert deaths > 12


def test_a_simulation_keeps_no_messages() -> None:
    _, machines = driven(0, rule="synchronous", kind="metropolis", graph="ring")
    assert not any(one.machine._kept for one in machines)


def test_a_waiting_worker_whose_ledger_was_set_back_releases_nothing_more() -> None:
    agreed = gossip(2, ROUNDS, rule="synchronous")
    start = np.zeros(D, dtype=np.float32)
    neighbour = worker(agreed, 1, start)
    neighbour.handle(on.Started())
    neighbour.handle(on.Heard(0, 3))  # from an earlier life of the neighbour
    machine = worker(agreed, 0, start)
    (hello,) = of(machine.handle(on.Started(1)), on.Send)
    answers = of(neighbour.handle(on.PeerMessage(0, hello.message)), on.Send)
    effects = machine.handle(on.PeerMessage(1, answers[0].message))
    assert machine.finished == "ledger set back" and of(effects, Alarm)
    for answer in answers[1:]:
        assert not of(machine.handle(on.PeerMessage(1, answer.message)), on.ComputeGradient)

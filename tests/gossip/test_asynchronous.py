"""A(DP)²SGD's worker: stale gradients, exchanges that keep the sum, ledgers, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from workers import D, done, gossip, of, plan, sent, vector

from forethought.exchange.events import Acknowledged, Alarm, Commit
from forethought.exchange.messages import Update
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.events import ANSWER, LAST, Hello, Known, Weights
from forethought.gossip.gossip import Trust
from forethought.gossip.worker import LOST, UNIT


def begun(me: int = 0, **changes: object) -> AsynchronousWorker:
    machine = AsynchronousWorker(gossip(**changes), me, vector(1, 2, 3))  # type: ignore[arg-type]
    assert [e.round for e in of(machine.handle(on.Started()), on.ComputeGradient)] == [0]
    return machine


def partner(machine: AsynchronousWorker, step: int) -> int:
    found = machine.gossip.mixing.partner(step, machine.me)
    assert found is not None
    return found


def said(base: int, *values: float, known: int = 0, **changes: int) -> Weights:
    kept = {"round": 1, "count": 0, "left": -1, **changes}
    return Weights(kept["round"], base, known, kept["count"], kept["left"], vector(*values))


def test_the_update_meets_the_weights_as_they_are_when_it_is_done() -> None:
    """The gradient was taken at (1, 2, 3); an exchange has moved them meanwhile."""
    machine = begun()
    machine.handle(on.Mix(0))
    other = partner(machine, 0)
    assert not of(machine.handle(on.PeerMessage(other, said(0, 3, 2, 1))), Alarm)
    assert machine.weights.tolist() == [2, 2, 2]
    effects = machine.handle(done(0, 1, 0, 0))
    assert machine.weights.tolist() == [1.5, 2, 2]  # a step of 0.5
    # What depends on a release comes after it is in the ledger.
    assert [type(e) for e in effects] == [Commit, on.ComputeGradient]
    assert effects[0].release.update.vector.tolist() == [1.5, 2, 2]
    assert of(machine.handle(done(1, 0, 0, 0)), Acknowledged) == [Acknowledged(0)]


def test_an_exchange_moves_by_half_of_what_was_sent_whatever_happened_since() -> None:
    machine = begun()
    assert sent(machine.handle(on.Mix(0)), Weights)[0].vector.tolist() == [1, 2, 3]
    machine.handle(done(0, 2, 0, 0))
    assert machine.weights.tolist() == [0, 2, 3]
    machine.handle(on.PeerMessage(partner(machine, 0), said(0, 3, 4, 5)))
    assert machine.weights.tolist() == [1, 3, 4]


@pytest.mark.parametrize(("graph", "kind"), [("complete", "matchings"), ("ring", "metropolis")])
@pytest.mark.parametrize("seed", range(5))
def test_the_sum_of_weights_and_counts_is_kept_in_any_order(
    graph: str, kind: str, seed: int
) -> None:
    """An oracle: whatever the order of events, Σ w = Σ w⁰ − Σ η u, and Σ counts = updates."""
    draw = np.random.default_rng(seed)
    agreed = gossip(6, 50, graph, kind, parameters=D, window=1000)
    machines = [AsynchronousWorker(agreed, k, vector(k, 2, -k)) for k in range(6)]
    post: list[tuple[int, on.Event]] = []
    computing: dict[int, int] = {}
    steps, summed, expected = [0] * 6, 0, np.zeros(D)
    for machine in machines:
        expected += machine.weights

    def act(k: int, effects: list[on.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, on.Send):
                post.append((effect.to, on.PeerMessage(k, effect.message)))
            elif isinstance(effect, on.ComputeGradient):
                computing[k] = effect.round

    for k, machine in enumerate(machines):
        act(k, machine.handle(on.Started()))
    for _ in range(600):
        k = int(draw.integers(6))
        match int(draw.integers(3)):
            case 0 if steps[k] <= min(steps) + 2:
                act(k, machines[k].handle(on.Mix(steps[k])))
                steps[k] += 1
            case 1 if k in computing and summed < 40:
                values = draw.normal(size=D).astype(np.float32)
                expected -= 0.5 * values.astype(float)
                summed += 1
                act(k, machines[k].handle(done(computing.pop(k), *values)))
            case _ if post:
                to, event = post.pop(int(draw.integers(len(post))))
                act(to, machines[to].handle(event))
    # What is under way is delivered; an exchange that one side has not begun is left out by both.
    for step in range(min(steps), max(steps)):
        for k in range(6):
            if steps[k] == step:
                act(k, machines[k].handle(on.Mix(step)))
                steps[k] += 1
    while post:
        to, event = post.pop()
        act(to, machines[to].handle(event))
    assert summed == 40
    total = sum(machine.weights.astype(float) for machine in machines)
    assert total == pytest.approx(expected, abs=2e-5)
    assert sum(machine.own.count for machine in machines) == pytest.approx(40 * UNIT, abs=600)


def test_no_worker_makes_more_updates_than_its_plan_has_rounds() -> None:
    machine = begun(plans=(plan(3),), rounds=3)
    for round in range(3):
        asked = of(machine.handle(done(round, 1, 1, 1)), on.ComputeGradient)
    assert asked == []
    assert machine.updates == 3
    assert of(machine.handle(done(3, 1, 1, 1)), Alarm)[0].code == "trainer"
    assert machine.updates == 3
    # It goes on averaging.
    assert sent(machine.handle(on.Mix(0)), Weights)


def test_a_round_is_asked_for_once_and_in_order() -> None:
    machine = begun()
    assert of(machine.handle(done(1, 0, 0, 0)), Alarm)
    assert machine.updates == 0
    machine.handle(done(0, 0, 0, 0))
    assert of(machine.handle(done(0, 0, 0, 0)), Alarm)
    assert machine.updates == 1


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (said(0, np.nan, 0, 0), "not finite"),
        (said(0, np.inf, 0, 0), "not finite"),
        (said(0, 1e9, 0, 0), "at most 1e+06"),
        (said(0, 1, 2), "sent 2 weights"),
        (said(0, 1, 2, 3, count=-UNIT * 1000), "count"),
        (said(0, 1, 2, 3, count=UNIT * 1000), "count"),
    ],
)
def test_weights_that_cannot_be_are_refused_and_change_nothing(
    message: Weights, words: str
) -> None:
    machine = begun()
    machine.handle(on.Mix(0))
    effects = machine.handle(on.PeerMessage(partner(machine, 0), message))
    assert [type(e) for e in effects] == [Alarm]
    assert words in effects[0].text
    assert machine.weights.tolist() == [1, 2, 3]


def test_a_count_below_zero_is_taken() -> None:
    """Exchanges that overlap move a number by more than there is between two workers."""
    machine = begun()
    machine.handle(on.Mix(0))
    assert not of(
        machine.handle(on.PeerMessage(partner(machine, 0), said(0, 3, 2, 1, count=-5))), Alarm
    )
    assert machine.weights.tolist() == [2, 2, 2]


def test_strangers_are_not_heard() -> None:
    machine = begun(workers=6, graph="ring")
    effects = machine.handle(on.PeerMessage(3, said(0, 5, 5, 5)))
    assert effects[0].code == "stranger"
    assert machine.handle(on.PeerMessage(0, said(0, 5, 5, 5)))[0].code == "stranger"


def test_differences_are_clipped_where_that_was_agreed() -> None:
    machine = begun(trust=Trust(difference=0.5))
    machine.handle(on.Mix(0))
    machine.handle(on.PeerMessage(partner(machine, 0), said(0, 1, 2, 103)))
    assert machine.weights.tolist() == [1, 2, 3.25]


def test_one_hostile_neighbour_neither_sets_a_model_nor_ends_a_run() -> None:
    """Weights that are taken whole elsewhere: the last ones of a neighbour, and an answer."""
    huge = (1e17, 0, 0)
    machine = begun(workers=4, trust=Trust(difference=1.0))
    machine.handle(on.Mix(0))
    hostile = partner(machine, 0)
    second = next(other for other in (1, 2, 3) if other != hostile)
    machine.handle(on.PeerMessage(hostile, said(0, 1, 2, 3, left=0)))
    assert not of(machine.handle(on.Mix(1)), on.WorkerFinished)
    effects = machine.handle(on.PeerMessage(hostile, said(LAST, *huge, round=0)))
    assert not of(effects, on.WorkerFinished) and machine.weights.tolist() == [1, 2, 3]
    # Two end it, once this worker is near its own end.
    early, late = machine.own.updates, machine.gossip.rounds - LOST
    for sender, updates in ((hostile, late), (second, early)):
        machine.own.updates = updates
        effects = machine.handle(on.PeerMessage(sender, said(LAST, *huge, round=0)))
        assert not of(effects, on.WorkerFinished)
    machine.own.updates = late
    effects = machine.handle(on.PeerMessage(second, said(LAST, *huge, round=0)))
    assert [e.reason for e in of(effects, on.WorkerFinished)] == ["neighbour"]
    assert float(np.linalg.norm(machine.weights - vector(1, 2, 3))) < 1.001
    outgoing = (Update(1, 4, vector(7, 7, 7)),)
    ledger = LedgerState(2, 2, b"", 1, outgoing, 4)
    terms = gossip(2, trust=Trust(difference=1.0))
    machine = AsynchronousWorker(terms, 0, vector(1, 2, 3), ledger)
    machine.handle(on.Started(1))
    machine.handle(on.PeerMessage(1, Known(5, 3, 2, 1)))
    machine.handle(on.PeerMessage(1, said(ANSWER, *huge, known=2)))
    assert float(np.linalg.norm(machine.weights - vector(7, 7, 7))) < 1.001


def test_a_hostile_count_moves_a_run_by_half_an_update_an_exchange() -> None:
    machine = begun(workers=4, trust=Trust(difference=1.0))
    for step in range(4):
        machine.handle(on.Mix(step))
        most = 4 * UNIT  # all rounds of everybody
        machine.handle(on.PeerMessage(partner(machine, step), said(step, 1, 2, 3, count=most)))
        assert machine.own.count == (step + 1) * UNIT // 2
    assert not machine.own.complete
    # Of two honest ones what one gains the other loses, however far apart they are.
    one, other = begun(trust=Trust(difference=1.0)), begun(me=1, trust=Trust(difference=1.0))
    one.own.count = 3 * UNIT
    step = next(step for step in range(9) if partner(one, step) == 1)
    sent = [machine.handle(on.Mix(step)) for machine in (one, other)]
    for machine, (sender, effects) in zip((other, one), enumerate(sent), strict=True):
        (told,) = (e.message for e in of(effects, on.Send))
        machine.handle(on.PeerMessage(sender, told))
    assert (one.own.count, other.own.count) == (5 * UNIT // 2, UNIT // 2)


def test_an_early_answer_waits_and_a_late_one_is_left_out() -> None:
    machine = begun(workers=2)
    machine.handle(on.PeerMessage(1, said(1, 5, 2, 3)))
    assert machine.weights.tolist() == [1, 2, 3]
    machine.handle(on.Mix(0))
    assert on.Mixed(1) in machine.handle(on.Mix(1))
    assert machine.weights.tolist() == [3, 2, 3]
    for step in range(2, 8):
        machine.handle(on.Mix(step))
    machine.handle(on.PeerMessage(1, said(0, 9, 9, 9)))
    assert machine.weights.tolist() == [3, 2, 3]
    machine.handle(on.PeerMessage(1, said(1, 9, 9, 9)))  # nor twice
    assert machine.weights.tolist() == [3, 2, 3]


def returning(updates: int = 2) -> AsynchronousWorker:
    outgoing = (Update(updates - 1, 4, vector(7, 7, 7)),)
    ledger = LedgerState(updates, updates, b"", updates - 1, outgoing, 4)
    machine = AsynchronousWorker(gossip(3), 0, vector(1, 2, 3), ledger)
    effects = machine.handle(on.Started(1))
    assert [e.to for e in effects if isinstance(e, on.Send)] == [1, 2]
    assert not of(effects, on.ComputeGradient)
    return machine


def test_a_returning_worker_asks_everybody_and_takes_somebodys_weights() -> None:
    machine = returning()
    assert machine.weights.tolist() == [7, 7, 7]
    assert machine.handle(on.PeerMessage(2, Known(5, 3, 2, 1))) == []
    asked = machine.handle(on.PeerMessage(1, Known(5, 3, 1, 0)))
    assert [(e.to, e.message.wanted) for e in asked if isinstance(e, on.Send)] == [(2, 1)]
    begun = machine.handle(on.PeerMessage(2, said(ANSWER, 4, 5, 6, known=2, count=9)))
    assert [(e.round, e.weights.tolist()) for e in of(begun, on.ComputeGradient)] == [
        (2, [4, 5, 6])
    ]
    assert machine.own.count == 9


@pytest.mark.parametrize("how", ["known", "weights", "later"])
def test_a_ledger_that_was_set_back_releases_nothing_more(how: str) -> None:
    """A neighbour heard of round 3; the ledger, restored from a backup, has 2."""
    machine = returning()
    if how == "known":
        effects = machine.handle(on.PeerMessage(1, Known(5, 3, 3, 1)))
    elif how == "weights":
        effects = machine.handle(on.PeerMessage(1, said(2, 4, 5, 6, known=3)))
    else:  # the neighbour that knows was away itself
        machine.handle(on.PeerLost(1))
        machine.handle(on.PeerMessage(2, Known(5, 3, 2, 0)))
        assert machine.own.computing
        effects = machine.handle(on.PeerMessage(1, said(9, 4, 5, 6, known=3)))
    assert of(effects, Alarm)[0].code == "ledger set back"
    assert of(effects, on.WorkerFinished)[0].reason == "ledger set back"
    assert not of(machine.handle(done(2, 0, 0, 0)), Commit)
    assert machine.handle(on.Mix(10)) == []
    assert machine.handle(on.PeerMessage(1, Hello(1, 1, 1))) == []


def test_a_returning_worker_that_nobody_answers_does_not_compute() -> None:
    machine = returning()
    for peer in (1, 2):
        assert not of(machine.handle(on.PeerLost(peer)), on.ComputeGradient)
    assert machine.handle(on.Mix(3)) == []
    assert sent(machine.handle(on.PeerBack(2)), Hello)
    assert of(machine.handle(on.PeerMessage(2, Known(0, 0, 0, 0))), on.ComputeGradient)


def test_what_is_computed_while_a_worker_is_away_counts_once_it_is_back() -> None:
    machine = begun(workers=2)
    machine.handle(on.Started(1))
    assert machine.handle(done(0, 2, 0, 0)) == []
    machine.handle(on.PeerMessage(1, Known(0, 0, 0, 1)))
    effects = machine.handle(on.PeerMessage(1, said(ANSWER, 4, 4, 4)))
    assert [type(e) for e in effects] == [Commit, on.ComputeGradient]
    assert machine.weights.tolist() == [3, 4, 4]


def test_exchanges_are_with_the_living() -> None:
    machine = begun(workers=4)
    other = partner(machine, 0)
    machine.handle(on.PeerLost(other))
    living = frozenset({0, 1, 2, 3} - {other})
    effects = machine.handle(on.Mix(0))
    drawn = machine.gossip.mixing.partner(0, 0, living)
    assert [e.to for e in effects if isinstance(e, on.Send)] == [
        one for one in (drawn,) if one is not None
    ]
    machine.handle(on.PeerBack(other))
    sends = [e.to for e in machine.handle(on.Mix(1)) if isinstance(e, on.Send)]
    assert sends == [partner(machine, 1)]


def test_the_end_is_known_by_count_and_told_to_others() -> None:
    """Two workers, four rounds each: at a count of eight, both stop after settling."""
    machine = begun(workers=2, settle=1)
    machine.handle(on.Mix(0))
    machine.handle(
        on.PeerMessage(1, said(0, 1, 2, 3, count=8 * UNIT, round=0))
    )  # half of it is its own now
    assert machine.own.count == 4 * UNIT
    assert machine.handle(done(0, 9, 9, 9)) == []  # not released: it is over
    assert [m.left for m in sent(machine.handle(on.Mix(1)), Weights)] == [0]
    assert [e.reason for e in of(machine.handle(on.Mix(2)), on.WorkerFinished)] == ["counted"]
    last = sent(machine.handle(on.PeerMessage(1, said(2, 0, 0, 0, round=0))), Weights)
    assert [m.base for m in last] == [LAST]
    other = begun(me=1, workers=2)
    assert [e.reason for e in of(other.handle(on.PeerMessage(0, last[0])), on.WorkerFinished)] == [
        "neighbour"
    ]
    assert other.weights.tolist() == machine.weights.tolist()


def test_a_stopped_worker_ends_at_once() -> None:
    machine = begun()
    assert [e.reason for e in of(machine.handle(on.Stop()), on.WorkerFinished)] == ["stopped"]
    assert machine.handle(done(0, 1, 1, 1)) == []


def test_tracking_exchanges_the_mean_update_too() -> None:
    machine = begun(workers=2, tracking=True)
    machine.handle(done(0, 2, 0, 0))
    assert machine.own.held.tolist() == [0, 2, 3, 2, 0, 0]
    machine.handle(done(1, 4, 0, 0))  # y = 2 + (4 − 2)
    assert machine.own.held.tolist() == [-2, 2, 3, 4, 0, 0]


def test_a_pause_averages_the_own_noise_before_the_next_gradient() -> None:
    machine = begun(workers=2, pause=2)
    assert not of(machine.handle(done(0, 2, 0, 0)), on.ComputeGradient)
    assert not of(machine.handle(on.Mix(0)), on.ComputeGradient)
    machine.handle(on.PeerMessage(1, said(0, 2, 2, 3, round=0)))
    # Of two workers, one exchange leaves each with half of everything: nothing is left to remove.
    assert [e.weights.tolist() for e in of(machine.handle(on.Mix(1)), on.ComputeGradient)] == [
        [1, 2, 3]
    ]
    assert not of(machine.handle(on.Mix(2)), on.ComputeGradient)


def test_the_point_of_a_gradient_leaves_out_what_was_not_passed_on_yet() -> None:
    machine = begun(workers=4)
    # 3/4 of the own step of (−1, 0, 0) are not the average's.
    (computed,) = of(machine.handle(done(0, 2, 0, 0)), on.ComputeGradient)
    assert machine.weights.tolist() == [0, 2, 3]
    assert computed.weights.tolist() == [0.75, 2, 3]
    # Half of the weights is the partner's now, which has a third of what others have.
    machine.handle(on.Mix(0))
    machine.handle(on.PeerMessage(partner(machine, 0), said(0, 4, 6, 3, round=0)))
    assert machine.weights.tolist() == [2, 4, 3]
    left = 0.75 * (1 - 0.5 * 4 / 3)
    assert np.allclose(machine.own.point, [2 + left, 4, 3])
    (computed,) = of(machine.handle(done(1, 0, 4, 0)), on.ComputeGradient)
    assert machine.weights.tolist() == [2, 2, 3]
    assert np.allclose(computed.weights, [2 + left, 2 + 0.75 * 2, 3])


def test_who_meets_nobody_does_not_take_all_gradients_at_one_point() -> None:
    # η = 0.5 over a batch of 1: w ← w − (point − 1)/2. Seeing a quarter of itself it would swing.
    machine = begun(workers=16, rounds=100, plans=(plan(102),))
    weights = machine.own.point
    for round in range(60):
        pull = (weights - 1) * 0.5 * 2
        (computed,) = of(machine.handle(done(round, *pull)), on.ComputeGradient)
        weights = computed.weights
    assert np.abs(machine.weights - 1).max() < 0.02


def test_as_printed_a_gradient_is_taken_at_the_own_weights() -> None:
    machine = begun(workers=4, point="own")
    (computed,) = of(machine.handle(done(0, 2, 0, 0)), on.ComputeGradient)
    assert computed.weights.tolist() == machine.weights.tolist() == [0, 2, 3]


def test_a_worker_that_takes_anothers_weights_has_no_excess_of_its_own() -> None:
    machine = begun(workers=2)
    machine.handle(done(0, 2, 0, 0))
    machine.handle(on.PeerLost(1))
    machine.handle(on.Started(1))
    machine.handle(on.PeerBack(1))
    machine.handle(on.Mix(0))
    machine.handle(on.PeerMessage(1, Known(1, 0, 1, 1)))
    machine.handle(on.PeerMessage(1, said(ANSWER, 7, 8, 9, known=1)))
    assert machine.own.point.tolist() == machine.weights.tolist() == [7, 8, 9]


@pytest.mark.parametrize(("kind", "weight"), [("matchings", 0.5), ("metropolis", 0.25)])
def test_exchanges_with_everybody_leave_the_point_at_the_average(kind: str, weight: float) -> None:
    """One worker of four steps, the others have nothing of it: whom it meets has an equal part of
    what it passed on, so its point stays at the average of all, exactly under Metropolis weights of
    a complete graph, where one exchange is with everybody."""
    machines = [begun(k, workers=4, kind=kind) for k in range(4)]
    machines[0].handle(done(0, 8, 0, 0))
    average = np.mean([machine.weights for machine in machines], axis=0)
    assert np.allclose(machines[0].own.point, average)
    told = [sent(machine.handle(on.Mix(0)), Weights)[0] for machine in machines]
    for k in range(1, 4):
        machines[0].handle(on.PeerMessage(k, told[k]))
    if kind == "metropolis":
        assert np.allclose(machines[0].weights, average)
        assert np.allclose(machines[0].own.point, average)
    else:
        excess = machines[0].weights - machines[0].own.point
        assert np.allclose(excess, 0.75 * (1 - weight * 4 / 3) * np.array([-4, 0, 0]))


def test_momentum_is_of_the_noised_means() -> None:
    machine = begun(momentum=0.5)
    machine.handle(done(0, 2, 0, 0))
    machine.handle(done(1, 2, 0, 0))
    assert machine.weights.tolist() == [1 - 0.5 * 2 - 0.5 * 3, 2, 3]

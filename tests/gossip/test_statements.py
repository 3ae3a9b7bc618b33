"""Who sees what of a worker: views in order, the paper's figure below the truth, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from test_decentralised import information
from workers import gossip, plan

import forethought as ft
from forethought.accounting.interval import at_most
from forethought.accounting.statement import Statement, StatementError, disjoint
from forethought.accounting.verification import verify
from forethought.gossip import events as on
from forethought.gossip.compression import Compression
from forethought.gossip.decentralised import NetworkViewError
from forethought.gossip.gossip import GossipError, Member, Trust
from forethought.gossip.statements import (
    as_in_the_paper,
    network_gains,
    outsider_gain,
    overview,
    shared,
    worker_statement,
)
from forethought.holders.simulator import worker as machine_of
from forethought.values.plan import Clip, Transcript, TranscriptError

ROUNDS = 6
QUANTILE = Clip(rule="quantile", count_noise=5.0)
# One clip norm that falls over 6 and over 8 rounds.
MOVING = tuple(plan(rounds, clip=Clip(final=0.01)) for rounds in (ROUNDS, ROUNDS + 2))
HALVES = tuple(Member(f"w{k}", k % 2) for k in range(16))


def exponential(workers: int = 16, exchanges: int = 5, **changes: Any):
    known = {"graph": "exponential", "kind": "exponential", "rule": "synchronous"}
    return gossip(workers, ROUNDS, exchanges=exchanges, **known, **changes)


def released(chosen: ft.Plan, rounds: int) -> Transcript:
    found = Transcript()
    for index in range(rounds):
        one = chosen.round(index)
        found.append(one, one.noise_std, one.clip_norm)
    return found


def test_one_release_of_a_longer_gossip_is_not_one_round() -> None:
    """The next round's first message leaves before the second release, and says more."""
    agreed = exponential(6, exchanges=5)
    one = released(agreed.plan(0), 1)
    with pytest.raises(NetworkViewError, match="average exactly"):
        worker_statement(agreed, 0, "network", observers=[5], transcript=one)


def test_neighbours_see_the_worker_s_own_rounds_as_the_ledger_counted_them() -> None:
    agreed = gossip(4, ROUNDS)
    whole = worker_statement(agreed, 1)
    assert whole.epsilon == ft.account(agreed.plan(1)).epsilon
    assert len(whole.mechanism) == ROUNDS + 2  # its cap, not the rounds that all make on average
    fewer = worker_statement(agreed, 1, transcript=released(agreed.plan(1), 3))
    assert fewer.epsilon == ft.account(agreed.plan(1), released=3).epsilon
    assert {"known-steps", "arrival-times"} <= {one.code for one in fewer.caveats}
    again = Statement.from_json(fewer.to_json())
    assert verify(again).epsilon == fewer.epsilon
    with pytest.raises(GossipError, match="released nothing"):
        worker_statement(agreed, 1, transcript=Transcript())
    # A neighbour can end a run when it likes: then all planned rounds count.
    [said] = [one.detail for one in fewer.assumptions if one.code == "ended-early"]
    assert said.startswith(f"epsilon {at_most(whole.guarantee)} of all 8 at ")
    other = plan(9, rate=0.25)
    with pytest.raises(TranscriptError):
        worker_statement(agreed, 1, transcript=released(other, 3))


def test_views_are_in_order() -> None:
    agreed = exponential()
    neighbours = worker_statement(agreed, 15).guarantee
    distant = worker_statement(agreed, 15, "network", observers=[14]).guarantee
    near = worker_statement(agreed, 15, "network", observers=[0]).guarantee
    several = worker_statement(agreed, 15, "network", observers=[14, 0]).guarantee
    outsider = worker_statement(agreed, 15, "outsider").guarantee
    assert outsider < distant < near <= several < neighbours
    sigma = agreed.plan(0).mechanism.rounds[0].noise_multiplier
    wanted = ft.Mechanism(ft.Rounds(sigma * math.sqrt(8), ROUNDS, ft.Poisson(0.5)))
    assert distant == pytest.approx(ft.epsilon(wanted, 1e-3).upper, rel=1e-6)
    wanted = ft.Mechanism(ft.Rounds(sigma * 4, ROUNDS, ft.Poisson(0.5)))
    assert outsider == pytest.approx(ft.epsilon(wanted, 1e-3).upper, rel=1e-6)


def test_a_network_statement_is_read_back_and_verified() -> None:
    made = worker_statement(exponential(), 3, "network", observers=[0])
    again = Statement.from_json(made.to_json())
    assert verify(again).epsilon == made.epsilon
    assert any(one.code == "distant-observer" for one in again.assumptions)
    part, agreed = released(exponential().plan(3), 2), exponential()
    made = worker_statement(agreed, 3, "network", observers=[0], transcript=part)
    # Of rounds that it may never have been proven for, what neighbours see.
    [said] = [one.detail for one in made.assumptions if one.code == "ended-early"]
    assert f" {at_most(worker_statement(agreed, 3).guarantee)} of all 6 at " in said
    assert verify(made, agreed.plan(3)).epsilon == made.epsilon
    with pytest.raises(GossipError, match="only there"):
        worker_statement(exponential(), 3, observers=[0])
    with pytest.raises(GossipError, match="only there"):
        worker_statement(exponential(), 3, "network")


@pytest.mark.parametrize("observer", [0, 5])
@pytest.mark.parametrize("me", [1, 7, 12])
def test_gains_are_those_of_the_messages_that_the_workers_send(observer: int, me: int) -> None:
    """Real machines with unit vectors as updates; what reaches the observer is solved for."""
    size = 16
    agreed = exponential(parameters=size)
    machines = [machine_of(agreed, k, np.zeros(size, np.float32)) for k in range(size)]
    todo: list[tuple[int, on.Event]] = [(k, on.Started()) for k in range(size)]
    rows: dict[int, list[np.ndarray]] = {round: [] for round in range(ROUNDS + 1)}
    models: dict[int, np.ndarray] = {}
    while todo:
        k, event = todo.pop(0)
        for effect in machines[k].handle(event):
            if isinstance(effect, on.Send):
                if effect.to == observer:
                    round, exchange = divmod(effect.message.base, agreed.exchanges)
                    # The first exchange shows what is known already: everybody's common model.
                    if exchange:
                        rows[round].append(effect.message.vector - models[round])
                todo.append((effect.to, on.PeerMessage(k, effect.message)))
            elif isinstance(effect, on.ComputeGradient):
                assert effect.weights == pytest.approx(
                    models.setdefault(effect.round, effect.weights)
                )
                mean = np.eye(size, dtype=np.float32)[k]
                todo.append((k, on.GradientDone(effect.round, mean, effect.round + 1, b"", b"s")))
    if me == observer:
        return
    found = sorted(
        (1 / information(np.array(rows[round]), [observer], [1.0] * size, me)) ** 0.5
        for round in range(ROUNDS)
    )
    said = [
        gain for gain, count in network_gains(agreed, me, [observer], ROUNDS) for _ in range(count)
    ]
    assert said == pytest.approx(found, rel=1e-4)


def test_one_round_is_covered_with_any_matrices() -> None:
    """Averaging noised values once, as in Muffliato: no later gradient shows anything."""
    once = {"plans": (plan(1),), "rule": "synchronous"}
    agreed = gossip(9, 1, "complete", "matchings", exchanges=6, **once)
    [(gain, count)] = network_gains(agreed, 4, [0], 1)
    assert gain == pytest.approx(math.sqrt(3)) and count == 1
    stated = worker_statement(agreed, 4, "network", observers=[0]).guarantee
    assert stated < worker_statement(agreed, 4).guarantee
    # A fixed matrix shows one unknown more in each exchange: on a ring nothing is hidden.
    ring = gossip(9, 1, "ring", "metropolis", exchanges=6, **once)
    assert network_gains(ring, 4, [0], 1) == [(1.0, 1)]
    quick = gossip(9, 1, "ring", "metropolis", plans=(plan(1),), rule="synchronous", exchanges=2)
    with pytest.raises(NetworkViewError, match="worker 4 reaches"):
        network_gains(quick, 4, [0], 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rule": "asynchronous", "exchanges": 1}, "under the rule 'asynchronous'"),
        ({"exchanges": 4}, "4 exchanges a round, which do not average exactly"),
        ({"kind": "metropolis"}, "do not average exactly"),
        ({"kind": "matchings"}, "do not average exactly"),
        ({"workers": 12}, "do not average exactly"),
        ({"momentum": 0.9}, "momentum or gradient tracking"),
        ({"tracking": True}, "momentum or gradient tracking"),
        ({"compression": Compression("bf16")}, "compressed or clipped exchanges"),
        ({"trust": Trust(difference=1.0)}, "compressed or clipped exchanges"),
        ({"plans": (plan(8, noise="grid"),)}, "on a grid"),
        (
            {"plans": (plan(8, clip=QUANTILE),)},
            "follow the data",
        ),
        ({"plans": MOVING, "members": HALVES}, "move apart"),
    ],
)
def test_what_is_not_proven_is_refused(changes: dict, says: str) -> None:
    known = {"workers": 16, "graph": "exponential", "kind": "exponential", "rule": "synchronous"}
    agreed = gossip(rounds=ROUNDS, **{**known, "exchanges": 5, **changes})
    with pytest.raises(NetworkViewError, match=says):
        worker_statement(agreed, 3, "network", observers=[0])


def by_examples(rate: float) -> ft.Plan:
    """Its step sizes fall with the number of records that came."""
    return plan(8, rate, schedule=ft.Schedule("inverse", 0.1, unit="examples"))


def test_an_outsider_of_sync_faces_everybody_s_noise_and_of_others_nobody_s() -> None:
    assert outsider_gain(gossip(9, ROUNDS, rule="allreduce"), 2) == pytest.approx(3)
    assert outsider_gain(exponential(), 2) == pytest.approx(4)
    for agreed in (
        gossip(9, ROUNDS),
        gossip(9, ROUNDS, rule="synchronous"),
        exponential(exchanges=4),
        exponential(tracking=True),
        exponential(compression=Compression("bf16")),
        exponential(trust=Trust(difference=1.0)),
        exponential(plans=MOVING, members=HALVES),
        exponential(plans=(by_examples(0.5), by_examples(0.25)), members=HALVES),
        exponential(plans=(plan(ROUNDS), plan(ROUNDS, noise="grid")), members=HALVES),
        gossip(9, ROUNDS, rule="allreduce", plans=(plan(ROUNDS, noise="grid"),)),
    ):
        assert outsider_gain(agreed, 2) == 1
        own, seen = (worker_statement(agreed, 2, view) for view in ("neighbours", "outsider"))
        assert seen.epsilon == own.epsilon


def test_the_noisiest_worker_hides_nobody_but_itself_less() -> None:
    """Of two kinds of workers the quiet ones face more noise of others than their own."""
    plans = (plan(8, rate=0.5), plan(8, rate=0.25))
    members = tuple(Member(f"w{k}", k % 2) for k in range(4))
    agreed = gossip(4, ROUNDS, rule="allreduce", plans=plans, members=members)
    # The mean of a smaller batch is noisier: divisors 20 and 10.
    assert outsider_gain(agreed, 0) == pytest.approx(math.sqrt(10))
    assert outsider_gain(agreed, 1) == pytest.approx(math.sqrt(2.5))


def test_steps_by_size_add_noise_by_size() -> None:
    """At one rate and σ the mean of half the records is twice as noisy, and weighs half."""
    plans = (plan(8, examples=40), plan(8, examples=20))
    members = tuple(Member(f"w{k}", k % 2) for k in range(4))
    changes = {"rule": "allreduce", "plans": plans, "members": members}
    by_size = gossip(4, ROUNDS, weights="size", **changes)
    assert [by_size.weight(k) for k in range(4)] == pytest.approx([4 / 3, 2 / 3] * 2)
    assert outsider_gain(by_size, 0) == outsider_gain(by_size, 1) == pytest.approx(2)
    equal = gossip(4, ROUNDS, **changes)
    assert outsider_gain(equal, 1) == pytest.approx(math.sqrt(2.5))


def test_the_paper_s_figure_is_below_the_truth() -> None:
    """About a K-th of the Rényi cost, since it hides who stepped; neighbours see it."""
    mechanism = ft.Mechanism(ft.Rounds(1.2, 400, ft.Poisson(0.05)))
    long = ft.Plan(mechanism, 1000, 1e-5, optimizer=ft.Optimizer("sgd", 0.5, ()))
    agreed = gossip(16, 400, plans=(long,))
    paper, own = as_in_the_paper(agreed, 0), worker_statement(agreed, 0).epsilon
    assert paper.upper < 0.4 * own.lower
    direct = ft.Mechanism(ft.Rounds(1.2, 6400, ft.Poisson(0.05 / 16)))
    assert paper == ft.epsilon(direct, 1e-5)
    fixed = ft.Plan(
        ft.Mechanism(ft.Rounds(1.2, 9, ft.WithoutReplacement(10, 40)), adjacency="replace-one"),
        40, 1e-5, optimizer=ft.Optimizer("sgd", 0.5, ()),
    )  # fmt: skip
    assert as_in_the_paper(gossip(4, 9, plans=(fixed,)), 0).upper > 0
    turns = ft.Plan(
        ft.Mechanism(ft.Rounds(1.2, 9, ft.FullBatch())), 40, 1e-5, optimizer=fixed.optimizer
    )
    with pytest.raises(GossipError, match="sampled at a"):
        as_in_the_paper(gossip(4, 9, plans=(turns,)), 0)


def test_all_workers_together() -> None:
    agreed = gossip(4, ROUNDS)
    each = {one.name: worker_statement(agreed, k) for k, one in enumerate(agreed.members)}
    most = disjoint(each)
    assert most.guarantee == each["w0"].guarantee
    assert any(one.code == "disjoint-holders" for one in most.assumptions)
    pair = agreed.plan(0).mechanism + agreed.plan(1).mechanism
    assert shared(agreed, 2).guarantee == ft.epsilon(pair, 1e-3).upper
    three = gossip(4, ROUNDS, plans=(plan(ROUNDS, records_per_person=3),))
    assert shared(three, 1).guarantee == worker_statement(three, 0).guarantee
    both = three.plan(0).mechanism + three.plan(0).mechanism
    assert shared(three, 2).guarantee == ft.epsilon(both, 1e-3, 3).upper
    stopped = [released(agreed.plan(k), 2) for k in range(4)]
    assert shared(agreed, 2, transcripts=stopped).guarantee < shared(agreed, 2).guarantee
    with pytest.raises(StatementError, match="one adjacency, group"):
        disjoint({"a": each["w0"], "b": worker_statement(exponential(), 0, "outsider")})
    table = overview(agreed, [*stopped[:3], Transcript()]).splitlines()
    assert len(table) == 6 and table[-1] == "| w3 | 0 | 0 | 0 | – | 0.001 |"
    assert "not claimed" in table[0]


def test_who_stopped_before_its_round_was_averaged_is_hidden_by_nobody() -> None:
    agreed = gossip(4, ROUNDS, rule="allreduce")
    whole = [released(agreed.plan(k), ROUNDS) for k in range(4)]
    short = released(agreed.plan(0), ROUNDS - 1)

    def epsilon(view: Any, transcript: Transcript) -> float:
        return worker_statement(agreed, 0, view, transcript=transcript).guarantee

    assert epsilon("outsider", short) == epsilon("neighbours", short)
    assert epsilon("outsider", whole[0]) < epsilon("neighbours", whole[0])
    # Nor are all its rounds, if results decided that; a complete one has none left over.
    made = [worker_statement(agreed, 0, "outsider", transcript=one) for one in (short, whole[0])]
    left = [[c.detail for c in one.caveats if c.code == "ended-early"] for one in made]
    assert left[1] == [] and at_most(epsilon("neighbours", whole[0])) in left[0][0]
    assert overview(agreed, whole) == overview(agreed)
    rows = [row.split(" | ") for row in overview(agreed, [*whole[:3], short]).splitlines()[2:]]
    assert all(seen == own and paper == "–" for _, _, own, seen, paper, _ in rows)


def test_an_outsider_s_gain_is_that_of_the_round_with_the_least_noise_of_others() -> None:
    """Three workers of four treble their noise after two rounds: no gain before them."""
    louder = ft.Mechanism(*(ft.Rounds(s, 1 + s, ft.Poisson(0.5)) for s in (1, 3)))
    plans = (plan(6), ft.Plan(louder, 40, 1e-3, optimizer=ft.Optimizer("sgd", 0.5, ())))
    members = tuple(Member(f"w{k}", min(k, 1)) for k in range(4))
    agreed = gossip(4, ROUNDS, rule="allreduce", plans=plans, members=members)
    assert outsider_gain(agreed, 0) == pytest.approx(2)

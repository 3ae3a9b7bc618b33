"""One run of one's own model: a bound that holds however canaries act on each other, and a fault.

False-alarm rates: each statistical test here fails a sound implementation with a chance below 1e-6.
"""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn

import forethought as ft
from drawn import randint, randn
from forethought.accounting.tradeoff import TradeOff, from_epsilon_delta, gaussian
from forethought.auditing import attack
from forethought.auditing.attack import Games, guessed, one_run_p_value, one_run_refutation
from forethought.auditing.one_run import one_run
from forethought.rounds.randomness import GaussianNoise
from forethought.values.plan import Plan
from forethought.values.use import Averaging, Optimizer, ReleaseUse
from trials.audits import replaced

N = 2_000
DATA = (randn(N, 12), randint(0, 3, (N,)))
# Gaussian with μ = 1: ε = 4.38 at δ = 1e-5.
STRONG = Plan(ft.Mechanism(ft.Rounds(2.0, 4, ft.FullBatch())), N, 1e-5)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def largest(canaries: int, guesses: int, right: int, claim: TradeOff) -> float:
    """The largest P(W ≥ right) that the inequalities allow: a linear program, cut by chords.

    A chord lies below the concave 1 − f, so the program is a little stricter than the theorem.
    """
    wrong = np.r_[0, np.geomspace(1e-5, 0.5, 40), 1 - np.geomspace(0.5, 1e-3, 40)[1:]]
    power, j = 1 - claim(wrong), np.arange(guesses + 1)
    rows, ends = [], []
    for k in range(len(wrong) - 1):
        slope = (power[k + 1] - power[k]) / (wrong[k + 1] - wrong[k])
        for c in range(1, guesses + 1):
            aside = np.where(j >= c - 1, guesses - j, 0)
            rows.append((np.where(j >= c, j, 0) - slope * aside) / canaries)
            ends.append(power[k] - slope * wrong[k])
    found = optimize.linprog(
        -(j >= right).astype(float), rows, ends, [np.ones(guesses + 1)], [1], bounds=(0, 1)
    )
    return float(-found.fun)


@pytest.mark.parametrize(("m", "r", "v"), [(20, 20, 16), (30, 12, 11), (40, 16, 16), (12, 12, 8)])
@pytest.mark.parametrize("claim", [gaussian(1.0), from_epsilon_delta(0.8, 0.01)])
def test_the_bound_is_the_largest_chance_that_the_theorem_allows(
    m: int, r: int, v: int, claim: TradeOff
) -> None:
    truth = largest(m, r, v, claim)
    assert truth * (1 - 1e-6) <= one_run_p_value(m, r, v, claim) <= 1.06 * truth


def test_more_right_guesses_than_the_smallest_chance_allows_refute() -> None:
    assert one_run_p_value(200, 200, 200, gaussian(0.1)) == pytest.approx(1e-12)


def gauss(source: np.random.Generator, there: np.ndarray) -> np.ndarray:
    """μ = 1, one canary independent of another."""
    return there + source.standard_normal(len(there))


def leak(source: np.random.Generator, there: np.ndarray) -> np.ndarray:
    """(log 3, 0.04): a run shows every coin with a chance of 4 %, else each by a biased coin."""
    honest = source.random(len(there)) < 0.75
    shown = np.where(honest | (source.random() < 0.04), there, ~there)
    return shown + 1e-3 * source.random(len(there))


@pytest.mark.parametrize(
    ("scores", "claim"), [(gauss, gaussian(1.0)), (leak, from_epsilon_delta(np.log(3), 0.04))]
)
def test_sound_runs_are_refuted_no_more_often_than_stated(scores: Any, claim: TradeOff) -> None:
    """Of 1,000 runs of 5 %; the second kind gives all coins away together, or none."""
    source, refuted = np.random.default_rng(3), 0
    known = functools.cache(lambda *found: one_run_refutation([found], 200, claim))
    for _ in range(1_000):
        there = source.random(200) < 0.5
        shown = scores(source, there)
        first, second = guessed(Games(shown[~there], shown[there]))
        assert (first[0], second[0]) == (10, 40)
        refuted += 2 * min(known(*first), known(*second)) < 0.05
    assert stats.binom.sf(refuted - 1, 1_000, 0.05) > 1e-6


def test_equal_scores_tell_nothing_of_their_coins() -> None:
    found = guessed(Games(np.zeros(500), np.zeros(500)))
    assert all(stats.binom.sf(right - 1, made, 0.5) > 1e-6 for made, right in found)


def half_noise() -> Any:
    add_to = GaussianNoise.add_to

    def broken(self: Any, vector: torch.Tensor, std: float, source: Any) -> None:
        add_to(self, vector, std / 2, source)

    return replaced((GaussianNoise, "add_to", broken))


@pytest.mark.slow
def test_a_run_of_ones_own_model_comes_near_its_claim_and_not_beyond() -> None:
    """Runs of 2,000 canaries show 2.4 to 3.5 of 4.38; below 1.2 is a chance under 1e-6."""
    own, rounds = model(), []
    before = [p.detach().clone() for p in own.parameters()]
    found = one_run(STRONG, own, DATA, number=N, seed=5, progress=lambda *at: rounds.append(at))
    assert rounds == [(done, 4) for done in range(1, 5)]
    assert all(torch.equal(p, q) for p, q in zip(before, own.parameters(), strict=True))
    assert not found.refuted and "rehearsal" in found.notes[0]
    attack = found.attack
    assert attack is not None and attack.fdp_epsilon is not None and attack.games == N
    assert attack.one_run_epsilon is not None and attack.epsilon is not None
    assert 1.2 < attack.fdp_epsilon < attack.claimed_epsilon < 4.38
    assert attack.one_run_epsilon < attack.fdp_epsilon
    with half_noise():
        found = one_run(STRONG, own, DATA, number=N, seed=5)
    assert found.refuted and found.attack is not None and found.attack.fdp_epsilon is not None
    assert found.attack.fdp_epsilon > found.attack.claimed_epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        Plan(ft.Mechanism(ft.Rounds(1.0, 20, ft.Poisson(0.2))), N, 1e-5),
        Plan(ft.Mechanism(ft.Rounds(1.0, 4, ft.Shuffled(500, N)), adjacency="zero-out"), N, 1e-5),
        Plan(
            ft.Mechanism(ft.Rounds(2.0, 3, ft.FullBatch()), adjacency="replace-one"),
            N,
            1e-5,
            clip=ft.Clip(1.0, "quantile", count_noise=20.0),
        ),
        STRONG.with_(clip=ft.Clip(1.0, "per-layer")),
    ],
    ids=["poisson", "shuffled", "replace-one, quantile", "per layer"],
)
@pytest.mark.parametrize("canaries", ["gradients", "inputs"])
def test_runs_of_every_kind_stand_it(plan: Plan, canaries: Any) -> None:
    found = one_run(plan, model(), DATA, canaries=canaries, number=100, seed=2)
    assert not found.refuted, found.reason
    assert found.attack is not None and found.attack.fdp_epsilon is not None
    assert found.attack.fdp_epsilon <= found.attack.claimed_epsilon


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 1])
def test_canaries_among_the_inputs_are_remembered_by_a_large_model(classes: int) -> None:
    """300 records in 2,000 dimensions, and noise that protects little: losses tell the coins."""
    data = (randn(300, 2_000) / 2_000**0.5, randint(0, classes, (300,)))
    use = ReleaseUse(Optimizer("sgd", 20.0, ()), averaging=Averaging("none"))
    loud = Plan(ft.Mechanism(ft.Rounds(0.2, 20, ft.FullBatch())), 300, 1e-5, use=use)
    found = one_run(loud, nn.Linear(2_000, 3), data, canaries="inputs", number=150, seed=1)
    assert not found.refuted and found.attack is not None
    assert found.attack.epsilon is None and found.attack.points == ()
    assert found.attack.fdp_epsilon is not None and found.attack.one_run_epsilon is not None
    assert found.attack.one_run_epsilon > 0.5 and found.attack.fdp_epsilon > 0.5


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TypeError, match="must be a"):
        one_run("plan.json")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="data, or neither"):
        one_run(STRONG, model())
    with pytest.raises(ValueError, match="canaries must be"):
        one_run(STRONG, canaries="outputs")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="records of yours"):
        one_run(STRONG, canaries="inputs")
    with pytest.raises(ValueError, match="one game"):
        one_run(Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.Poisson(0.5), "group")), N, 1e-5, groups=2))
    with pytest.raises(ValueError, match="number must be"):
        one_run(STRONG, number=N + 1)
    with pytest.raises(ValueError, match="claims nothing"):
        one_run(Plan(ft.Mechanism(ft.Rounds(0.0, 2, ft.FullBatch())), N, 1e-5))
    with pytest.raises(ValueError, match="has 3:"):
        one_run(STRONG, model(), (DATA[0][:3], DATA[1][:3]))
    with pytest.raises(ValueError, match="model's outputs"):
        one_run(STRONG, loss=nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="seed must be"):
        one_run(STRONG, seed=-1)
    with pytest.raises(TypeError, match="must be a"):
        one_run(STRONG, "model", DATA)  # type: ignore[arg-type]


def test_the_secret_of_a_replaced_record_is_not_told_to_the_attacker() -> None:
    """A model that knows every answer forgets it, by decay: noise hides all that it was taught.

    So a record's own target costs it more than before, and a wrong target less, in or out.
    """
    answers = randint(0, 3, (400,))
    knowing = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        knowing.weight.copy_(torch.eye(3))
    decay = Optimizer("sgd", 1e-3, (("weight_decay", 1e3),))
    use = ReleaseUse(decay, averaging=Averaging("none"))
    mechanism = ft.Mechanism(ft.Rounds(100.0, 1, ft.FullBatch()), adjacency="replace-one")
    plan, data = Plan(mechanism, 400, 1e-5, use=use), (40.0 * torch.eye(3)[answers], answers)
    with mock.patch.object(attack, "one_run_fdp_epsilon"):  # slow, and not asked for
        found = one_run(plan, knowing, data, canaries="inputs", seed=1, false_alarm=1e-6)
    assert not found.refuted, found.reason


def test_shares_by_name_become_equal_ones() -> None:
    clip = ft.Clip(1.0, "per-layer", shares=(("weight", 0.8), ("bias", 0.6)))
    plan = Plan(ft.Mechanism(ft.Rounds(9.0, 1, ft.FullBatch())), 60, 1e-5, clip=clip)
    data = (randn(60, 4), randint(0, 3, (60,)))
    with mock.patch.object(attack, "one_run_fdp_epsilon"):
        found = one_run(plan, nn.Linear(4, 3), data, canaries="inputs", seed=2)
    assert found.attack is not None and found.attack.games == 30
    assert "same share" in found.notes[1]


def test_progress_is_told_without_a_model_too() -> None:
    class StoppedError(Exception):
        pass

    def stop(*at: int) -> None:
        raise StoppedError(at)

    plan = Plan(ft.Mechanism(ft.Rounds(9.0, 3, ft.FullBatch())), 60, 1e-5)
    with pytest.raises(StoppedError, match="1, 3"):
        one_run(plan, seed=0, progress=stop)

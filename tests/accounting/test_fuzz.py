"""Random mechanisms against the oracle and the clock; see fuzz.py for as many as one likes."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

_SPEC = importlib.util.spec_from_file_location("accounting_fuzz", Path(__file__).parent / "fuzz.py")
assert _SPEC is not None and _SPEC.loader is not None
fuzz = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = fuzz
_SPEC.loader.exec_module(fuzz)


def _judge(outcome) -> None:
    assert not outcome.faults
    assert not outcome.slow
    # A large loss that only one rare hit brings is what stays wide (docs/accounting.md).
    assert len(outcome.wide) <= 0.03 * outcome.narrowable + 1, outcome.wide


@pytest.mark.slow
@pytest.mark.no_cover  # a minute more, of lines that quick tests run
def test_random_mechanisms_lie_in_their_intervals():
    # Of faults in one mechanism of forty, 120 show one with a probability of 0.95; a certain seed
    # has no false alarm. fuzzed.csv has what came of ten thousand.
    outcome = fuzz.run(100, 120, 40)
    assert outcome.checked >= 50
    _judge(outcome)


@pytest.mark.slow
@pytest.mark.no_cover
def test_small_mechanisms_of_every_cell_hold_by_enumeration() -> None:
    # Every cell four times; below, 40 cases see an attack that claims two hundredths too much.
    found = fuzz.run_small(3, 4 * len(fuzz.SUPPORTED))
    assert {cell[:3] for cell in found.asked} == set(fuzz.SUPPORTED)
    assert found.attacks >= found.cases / 3
    assert found.too_low == [] and found.too_high == []


def test_the_oracle_agrees_with_a_simulation():
    # False alarm: 5 standard errors, 6e-7.
    mechanism = fuzz.Mechanism(
        fuzz.Rounds(2.18634, 32, fuzz.Poisson(0.00112), "group"), adjacency="zero-out"
    )
    level, rate, shift = 0.021, 0.00112, 2 / 2.18634
    rng = np.random.default_rng(5)
    weights = [(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2]
    values = []
    for _ in range(8):
        hits = rng.choice(3, size=(50_000, 32), p=weights)
        z = rng.standard_normal(hits.shape) + shift * hits
        gain = sum(
            w * np.expm1(k * shift * z - (k * shift) ** 2 / 2) for k, w in enumerate(weights)
        )
        values.append(np.maximum(0.0, -np.expm1(level - np.log1p(gain).sum(axis=1))))
    simulated = np.concatenate(values)
    truth = fuzz._oracle().truth(mechanism, level, 2)
    error = 5 * float(simulated.std()) / len(simulated) ** 0.5
    assert abs(float(np.exp(truth.log_delta)) - float(simulated.mean())) <= error


def _profile(mechanism, level, group):
    """δ(level) of one Poisson round under add-or-remove, in 60 digits: no grid, no quadrature."""
    (part,) = mechanism.rounds
    q, sigma = mp.mpf(part.sampling.rate), mp.mpf(part.noise_multiplier)
    shift = (2 if part.clipping == "group" else 1) / sigma
    weights = [mp.binomial(group, k) * q**k * (1 - q) ** (group - k) for k in range(group + 1)]
    if part.groups is not None and part.groups < group:
        weights = [*weights[: part.groups], mp.fsum(weights[part.groups :])]

    def loss(z):
        terms = (w * mp.exp(k * shift * z - (k * shift) ** 2 / 2) for k, w in enumerate(weights))
        return mp.log(mp.fsum(terms))

    def below(wanted):
        low, high = mp.mpf(-2000), mp.mpf(2000)
        if loss(low) >= wanted:
            return low
        for _ in range(250):
            middle = (low + high) / 2
            low, high = (middle, high) if loss(middle) < wanted else (low, middle)
        return low

    def tail(z):
        return mp.erfc(z / mp.sqrt(2)) / 2

    level = mp.mpf(level)
    z, y = below(level), below(-level)
    more = mp.fsum(w * tail(z - k * shift) for k, w in enumerate(weights))
    less = mp.fsum(w * tail(k * shift - y) for k, w in enumerate(weights))
    grown = mp.exp(level)
    return max(more - grown * tail(z), tail(-y) - grown * less)


@pytest.mark.slow
def test_single_rounds_hold_without_any_slack():
    checked = 0
    with mp.workdps(60):
        for seed in range(100, 112):
            for _, case in zip(range(180), fuzz.plain_cases(seed), strict=False):
                mechanism = case.mechanism
                poisson = isinstance(mechanism.rounds[0].sampling, fuzz.Poisson)
                if len(mechanism) > 1 or not poisson or mechanism.adjacency != "add-or-remove":
                    continue
                got = fuzz.exact.epsilon(mechanism, case.delta, case.group)
                if got.upper:
                    assert _profile(mechanism, got.upper, case.group) <= case.delta, case
                if got.lower:
                    assert _profile(mechanism, got.lower, case.group) >= case.delta, case
                checked += 1
    assert checked >= 15


@pytest.mark.slow
def test_an_accountant_that_is_wrong_is_caught(monkeypatch):
    from forethought.accounting import theorems

    honest = theorems.shifts_of

    def too_near(rounds, group, moved):
        return honest(rounds, group, lambda k: 0.9 * moved(k))

    monkeypatch.setattr(theorems, "shifts_of", too_near)
    assert fuzz.run(11, 8, 0).faults


@pytest.mark.slow
def test_an_attack_that_claims_too_much_is_caught_by_enumeration(monkeypatch):
    honest = fuzz.attained

    def more(mechanism, delta, group):
        return replace(found := honest(mechanism, delta, group), epsilon=1.02 * found.epsilon)

    monkeypatch.setattr(fuzz, "attained", more)
    assert len(fuzz.run_small(3, 40).too_high) >= 3


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_record_alone_in_the_last_batch_has_nobody_opposite(adjacency: str) -> None:
    part = fuzz.Rounds(3.5967428257431, 2, fuzz.Shuffled(2, 3), "group", groups=1)
    found = fuzz.Enumerated()
    for delta in (0.15, 0.05, 0.01):
        case = fuzz.Case(fuzz.Mechanism(part, adjacency=adjacency), delta, 1)
        fuzz.enumerate_small(case, 3, found)
    assert found.attacks and (found.too_low, found.too_high) == ([], [])


def test_no_kept_enumeration_found_a_violation() -> None:
    with fuzz.KEPT.open(encoding="utf-8", newline="") as file:
        rows = list(fuzz.csv.DictReader(file))
    assert tuple(rows[0]) == fuzz.FIELDS
    listed = [row for row in rows if row["oracle"] == "enumeration"]
    assert listed and all(row["violations"] == "0" for row in listed)
    assert {int(row["cells"]) for row in listed} == {len(fuzz.SUPPORTED)}

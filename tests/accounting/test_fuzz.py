"""Random mechanisms against the oracle and the clock; see fuzz.py for as many as one likes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

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
    assert len(outcome.wide) <= 0.02 * outcome.narrowable + 1, outcome.wide


def test_a_few_random_mechanisms_lie_in_their_intervals():
    outcome = fuzz.run(11, 24, 16, every=2)
    assert outcome.checked >= 6
    _judge(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_random_mechanisms_lie_in_their_intervals(seed):
    # 2,000 cases in all.
    outcome = fuzz.run(seed, 180, 70)
    assert outcome.checked >= 80
    _judge(outcome)


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


def test_an_accountant_that_is_wrong_is_caught(monkeypatch):
    from forethought.accounting.pld import pairs

    honest = pairs._shifts

    def too_near(rounds, group, radius):
        return honest(rounds, group, 0.9 * radius)

    monkeypatch.setattr(pairs, "_shifts", too_near)
    assert fuzz.run(11, 8, 0).faults

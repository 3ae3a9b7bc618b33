"""Intervals of a rehearsal: as wide as pairs in the same relation were off, and honest about it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forethought as ft
from forethought.utility.rehearsal import KNOWS_NOTHING, Rehearsal
from forethought.utility.resemblance import (
    HELD,
    HELD_BY_NETWORKS,
    NETWORK_SCORES,
    SCORES,
    score,
    widened,
)

RESULTS = Path(__file__).parents[2] / "experiments" / "defaults" / "rehearsals.jsonl"


def test_a_score_is_the_widening_that_just_reaches_the_achieved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for achieved in (0.31, 0.6, 0.72, 0.97, 1.0):
        found = score((0.55, 0.7), achieved)
        assert (found < 0) == (0.55 < achieved < 0.7)
        monkeypatch.setitem(SCORES, "same task", (found,) * 9)
        low, high = widened((0.55, 0.7), "same task", 0.9, linear=True) or (0, 0)
        inner = score((low, high), achieved)
        assert abs(inner) < 1e-9 or high == 1.0


def test_one_more_exchangeable_pair_is_held_as_often_as_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4,000 draws of 39 pairs and one more: coverage is 0.9 to 0.925 (Romano et al., Theorem 1).

    Outside 0.88 to 0.945 with a chance below 1e-4 (binomial deviation 0.0047).
    """
    random = np.random.default_rng(1)
    held = 0
    for _ in range(4_000):
        middles = random.uniform(0.4, 0.95, 40)
        widths = random.uniform(0.01, 0.05, 40)
        achieved = np.clip(middles + random.standard_t(2, 40) * 0.05, 0, 1)
        intervals = [(m - w, min(1.0, m + w)) for m, w in zip(middles, widths, strict=True)]
        seen = tuple(score(i, a) for i, a in zip(intervals[:-1], achieved[:-1], strict=True))
        monkeypatch.setitem(SCORES, "same task", seen)
        low, high = widened(intervals[-1], "same task", 0.9, linear=True) or (0, 1)
        held += low <= achieved[-1] <= high
    assert 0.88 <= held / 4_000 <= 0.945


def test_it_says_when_it_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ft.plan(examples=200, noise_multiplier=1.0, batch=20, rounds=5)
    found = Rehearsal((0.8, 0.82), (0.5, 0.5), 0.9, "proxy", 200, 100, 1.0, True, plan, linear=True)
    assert widened(found.run_interval, None, 0.9, linear=True) is None
    assert found.interval == (0.0, 1.0) and KNOWS_NOTHING in found.text()
    monkeypatch.setitem(SCORES, "same source", (0.1,) * 19)
    known = replace(found, relation="same source")
    assert known.interval != (0.0, 1.0) and "19 other pairs" in known.text()
    assert "held {} of {} pairs of data sets".format(*HELD["same source"]) in known.text()
    assert KNOWS_NOTHING not in known.text()
    made = replace(found, relation="synthetic")
    assert made.interval == (0.0, 1.0) and "whether the plan trains at all" in made.text()
    # Whatever is bundled of it, another task of the same shape says nothing of this one.
    shape = replace(found, relation="same shape")
    assert shape.interval == (0.0, 1.0) and KNOWS_NOTHING in shape.text()
    assert "no more than their shape" in shape.text()
    # 19 pairs say nothing at a level of 96 %: more than 1 in 20.
    beyond = replace(known, level=0.96)
    assert beyond.interval == (0.0, 1.0) and "too few for a level of 0.96" in beyond.text()


def test_networks_are_allowed_for_by_pairs_of_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ft.plan(examples=200, noise_multiplier=1.0, batch=20, rounds=5)
    monkeypatch.setitem(SCORES, "same task", (0.1,) * 19)
    monkeypatch.setitem(NETWORK_SCORES, "same task", (0.5,) * 23)
    ends = (0.8, 0.82), (0.5, 0.5), 0.9, "proxy", 200, 100, 1.0, True, plan, "same task"
    linear, network = (Rehearsal(*ends, linear=known) for known in (True, False))
    assert linear.interval[0] - network.interval[0] > 0.03
    assert "23 other pairs" in network.text() and "a small perceptron" in network.text()
    assert "held {} of {} pairs".format(*HELD_BY_NETWORKS["same task"]) in network.text()
    assert "a linear model" in linear.text()
    # Pairs that agree more than their repeats do not narrow a network's.
    monkeypatch.setitem(NETWORK_SCORES, "same task", (-0.5,) * 23)
    assert network.interval == network.run_interval
    monkeypatch.setitem(SCORES, "same task", (-0.5,) * 23)
    assert linear.interval[0] > linear.run_interval[0]


def test_pairs_that_agree_more_than_their_repeats_narrow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SCORES, "same source", (-0.05,) * 20)
    low, high = widened((0.6, 0.8), "same source", 0.9, linear=True) or (0, 0)
    assert 0.6 < low < high < 0.8
    monkeypatch.setitem(SCORES, "same source", (-9.0,) * 20)
    low, high = widened((0.6, 0.8), "same source", 0.9, linear=True) or (0, 0)
    assert low == high and math.isclose(low, 0.707, abs_tol=0.01)


def kept(model: str, split: str, relation: str) -> list[dict[str, Any]]:
    """The pairs that were rehearsed."""
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    wanted = (model, split, relation)
    return [r for r in rows if (r["model"], r["split"], r["relation"]) == wanted and "low" in r]


@pytest.mark.skipif(not RESULTS.exists(), reason="the experiments are not here")
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_bundled_scores_are_those_of_the_calibrated_pairs(model: str) -> None:
    bundled = {"linear": SCORES, "mlp": NETWORK_SCORES}[model]
    assert list(bundled) == ["same source", "same task"]
    for relation, scores in bundled.items():
        found = [
            score((r["low"], r["high"]), r["achieved"]) for r in kept(model, "calibrated", relation)
        ]
        assert sorted(found) == pytest.approx(scores, abs=6e-4)
        assert len(scores) >= 50


@pytest.mark.skipif(not RESULTS.exists(), reason="the experiments are not here")
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_bundled_shares_are_those_of_the_held_out_pairs(model: str) -> None:
    bundled = {"linear": HELD, "mlp": HELD_BY_NETWORKS}[model]
    assert list(bundled) == list(SCORES)
    for relation, said in bundled.items():
        pairs = kept(model, "held out", relation)
        ends = [
            widened((r["low"], r["high"]), relation, 0.9, linear=model == "linear") or (0, 1)
            for r in pairs
        ]
        held = sum(low <= r["achieved"] <= high for r, (low, high) in zip(pairs, ends, strict=True))
        assert said == (held, len(pairs)) and len(pairs) >= 50


@pytest.mark.skipif(not RESULTS.exists(), reason="the experiments are not here")
def test_the_text_says_how_far_off_pairs_of_one_shape_were() -> None:
    rows = kept("linear", "held out", "same shape")
    errors = [100 * abs(row["predicted"] - row["achieved"]) for row in rows]
    plan = ft.plan(examples=200, noise_multiplier=1.0, batch=20, rounds=5)
    found = Rehearsal((0.8, 0.82), (0.5, 0.5), 0.9, "p", 200, 100, 1.0, True, plan, "same shape")
    assert f"off by {np.median(errors):.0f} points at the median" in found.text()
    assert f"up to {max(errors):.0f}" in found.text()

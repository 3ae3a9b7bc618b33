"""The scores that are bundled, and what a rehearsal says, are those of the kept pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forethought as ft
from forethought.utility.rehearsal import HELD, SCORES, Rehearsal, calibrated, score

RESULTS = Path(__file__).parents[2] / "experiments" / "defaults" / "rehearsals.jsonl"
CALLED = {"linear": "linear", "mlp": "perceptron"}


def plan() -> ft.Plan:
    return ft.plan(examples=200, noise_multiplier=1.0, batch=20, rounds=5)


def rehearsed(relation: Any, **options: Any) -> Rehearsal:
    ends = (0.8, 0.82), (0.5, 0.5), 0.9, "proxy", 200, 100, 1.0, True, plan(), relation
    return Rehearsal(*ends, **(options or {"linear": True}))


def kept(model: str, relation: str, fresh: bool) -> list[dict[str, Any]]:
    """The pairs that were rehearsed."""
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    wanted = (model, relation, fresh)
    return [
        r
        for r in rows
        if (r["model"], r["relation"], r["split"] == "fresh") == wanted and "low" in r
    ]


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_bundled_scores_are_those_of_the_pairs_looked_at(model: str) -> None:
    bundled = SCORES[CALLED[model]]
    assert list(bundled) == ["same source", "same task"]
    for relation, scores in bundled.items():
        found: dict[str, list[float]] = {}
        for r in kept(model, relation, fresh=False):
            one = score((r["low"], r["high"]), r["achieved"])
            found.setdefault(r["pair"].split(",")[0], []).append(one)
        assert set(found) == set(scores) and len(scores) == 12
        for name, of in found.items():
            gaps = np.array(scores[name]) - sorted(of)
            assert ((gaps > -1e-9) & (gaps < 1.1e-3)).all()  # rounded up


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_bundled_shares_are_those_of_the_fresh_pairs(model: str) -> None:
    for relation, said in HELD[CALLED[model]].items():
        pairs = kept(model, relation, fresh=True)
        scores = SCORES[CALLED[model]][relation]
        held = 0
        for r in pairs:
            low, high = calibrated((r["low"], r["high"]), scores, 0.9) or (0, 1)
            held += min(low, r["low"]) <= r["achieved"] <= max(high, r["high"])
        assert said == (held, len(pairs))
        assert len(pairs) >= 60


def test_no_fresh_pair_is_of_a_data_set_that_is_calibrated_on() -> None:
    looked_at = {name for scores in SCORES["linear"].values() for name in scores}
    for model in ("linear", "mlp"):
        for relation in HELD[CALLED[model]]:
            fresh = {r["pair"].split(",")[0] for r in kept(model, relation, fresh=True)}
            assert len(fresh) == 22 and not fresh & looked_at


def test_the_text_says_how_far_off_pairs_of_one_shape_were() -> None:
    rows = kept("linear", "same shape", fresh=False)
    errors = [100 * abs(row["predicted"] - row["achieved"]) for row in rows]
    found = rehearsed("same shape")
    assert f"off by {np.median(errors):.0f} points at the median" in found.text()
    assert f"up to {max(errors):.0f}" in found.text()

"""Requests of every kind and the plans they were given: equal to the last bit, words included.

``python tests/planning/test_same_plans.py`` writes ``same_plans.json`` anew.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import forethought as ft

KEPT = Path(__file__).with_name("same_plans.json")
BUDGET = {"examples": 2000, "budget": (1.5, 1e-5)}
SIGMA = {"examples": 2000, "noise_multiplier": 2.0, "batch": 100, "rounds": 50}
REQUESTS: dict[str, dict[str, Any]] = {
    "budget": BUDGET,
    "budget and epochs": {**BUDGET, "epochs": 5},
    "budget and rounds": {**BUDGET, "rounds": 60},
    "budget and batch": {**BUDGET, "batch": 64},
    "noise": SIGMA,
    "noise and delta": {**SIGMA, "delta": 1e-6},
    "budget, noise and batch": {**BUDGET, "noise_multiplier": 4.0, "batch": 100},
    "budget, noise and epochs": {**BUDGET, "noise_multiplier": 4.0, "epochs": 3},
    "budget and noise": {**BUDGET, "noise_multiplier": 4.0},
    "without replacement": {**BUDGET, "sampling": "without-replacement", "rounds": 40},
    "shuffled": {**BUDGET, "sampling": "shuffled", "rounds": 40},
    "full batch": {**BUDGET, "sampling": "full-batch", "rounds": 20},
    "random allocation": {**BUDGET, "sampling": "random-allocation", "rounds": 40, "batch": 50},
    "in turns": {**BUDGET, "sampling": "cyclic-poisson", "parts": 10, "rounds": 40},
    "correlated": {
        **BUDGET,
        **{"sampling": "cyclic-poisson", "parts": 10, "rounds": 40, "noise": "correlated"},
    },
    "zero-out": {**BUDGET, "adjacency": "zero-out", "rounds": 40},
    "grid": {**BUDGET, "noise": "grid", "rounds": 40},
    "groups": {**BUDGET, "clipping": "group", "groups": 4, "batch": 64, "rounds": 40},
    "local": {**BUDGET, "clipping": "group", "local": "sgd", "batch": 64, "rounds": 40},
    "local fields": {
        **BUDGET,
        "clipping": "group",
        "local": {"optimizer": "sgd", "learning_rate": 0.1, "step": 8},
        "rounds": 40,
    },
    "falling noise": {**BUDGET, "noise_schedule": "forgetting", "rounds": 40, "batch": 100},
    "falling by three": {**SIGMA, "noise_schedule": "geometric", "noise_fall": 3.0},
    "growing": {**BUDGET, "size_schedule": "linear", "size_growth": 2.0, "rounds": 40},
    "power": {**BUDGET, "size_schedule": "power", "size_power": 0.3, "rounds": 40},
    "linear": {**BUDGET, "parameters": 31 * 3, "features": 30, "feature_norm": 5.0},
    "linear of images": {
        **BUDGET,
        **{"parameters": 101 * 10, "features": 100, "feature_norm": 1.0, "image_features": True},
    },
    "linear, known norm": {
        **BUDGET,
        **{"parameters": 31 * 3, "features": 30, "feature_norm": 5.0, "feature_norm_known": True},
        "centre": False,
    },
    "network": {**BUDGET, "parameters": 20_000, "noise_borne": 12.0},
    "adam": {**BUDGET, "optimizer": "adam", "parameters": 1000},
    "momentum": {**BUDGET, "options": {"momentum": 0.5}, "parameters": 1000},
    "clipped": {**BUDGET, "clip_norm": 0.5, "final_clip_norm": 0.1, "learning_rate": 0.5},
    "quantile": {**BUDGET, "clip_rule": "quantile", "clip_norm": 1.0, "quantile": 0.6},
    "persons": {**BUDGET, "records_per_person": 4, "persons": 900},
    "rows of persons": {**BUDGET, "records_per_person": 4, "rounds": 40},
    "contributions of persons": {
        **BUDGET,
        **{"records_per_person": 4, "persons": 900, "person_as": "contribution", "rounds": 40},
    },
    "groups of rows": {
        **BUDGET,
        **{"records_per_person": 3, "persons": 900, "person_as": "group", "rounds": 40},
    },
    "augmented": {**BUDGET, "augment": ["mirror", "shift"], "augmentations": 3, "rounds": 40},
    "filtered": {**BUDGET, "gradient_filter": "low-pass", "rounds": 40},
    "words": {**BUDGET, "hyperparameters": "chosen on public data", "not_covered": ("a vote",)},
    # Refused:
    "nothing": {"examples": 100},
    "no examples": {"budget": (1.0, 1e-5)},
    "half": {"examples": 100, "noise_multiplier": 1.0, "epochs": 2},
    "too much": {**BUDGET, "noise_multiplier": 2.0, "batch": 10, "rounds": 10},
    "twice a length": {**BUDGET, "epochs": 1, "rounds": 10},
    "twice a delta": {**BUDGET, "delta": 1e-3},
    "no noise": {**BUDGET, "noise_multiplier": 0},
    "little noise": {**BUDGET, "noise_multiplier": 0.01, "batch": 50},
    "out of reach": {**BUDGET, "noise_multiplier": 0.3, "batch": 1000},
    "parts alone": {**BUDGET, "parts": 3},
    "no parts": {**BUDGET, "sampling": "cyclic-poisson"},
    "batch of all": {**BUDGET, "sampling": "full-batch", "batch": 3},
    "large batch": {**BUDGET, "batch": 3000},
    "local alone": {**BUDGET, "local": "sgd"},
    "correlated alone": {**BUDGET, "noise": "correlated"},
    "many groups": {**BUDGET, "clipping": "group", "groups": 100, "batch": 64},
    "clip norm": {**BUDGET, "clip_norm": -1.0},
    "final clip norm": {**BUDGET, "clip_norm": 1.0, "final_clip_norm": 0.0},
    "quantile of all": {**BUDGET, "clip_rule": "quantile", "quantile": 1.5},
    "count noise": {**BUDGET, "clip_rule": "quantile", "count_noise": -1},
    "clip rule": {**BUDGET, "clip_rule": "hard"},
    "adjacency": {**BUDGET, "adjacency": "any"},
    "clipping": {**BUDGET, "clipping": "none"},
    "shuffled and add-or-remove": {**BUDGET, "sampling": "shuffled", "adjacency": "add-or-remove"},
    "fall alone": {**BUDGET, "noise_fall": 3.0},
    "great fall": {**BUDGET, "noise_schedule": "linear", "noise_fall": 1000.0},
    "growth alone": {**BUDGET, "size_growth": 3.0},
    "optimizer": {**BUDGET, "optimizer": "newton"},
    "option": {**BUDGET, "options": {"momenta": 0.5}},
    "epochs": {**BUDGET, "epochs": -1},
    "rounds": {**BUDGET, "rounds": 0},
    "centre": {**BUDGET, "centre": True},
    "person": {**BUDGET, "records_per_person": 2, "persons": 5},
    "person as": {**BUDGET, "person_as": "contribution", "clipping": "group"},
    "misspelt": {**BUDGET, "epoch": 3},
    "unknown": {**BUDGET, "zzz": 3},
    "filter": {**BUDGET, "filter": 0.5},
}


def answer(given: dict[str, Any]) -> Any:
    """The plan of a request, or the words to it, and warnings."""
    asked = {
        name: ft.Budget(*value) if name == "budget" else value for name, value in given.items()
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found: Any = ft.plan(**asked).to_dict()
        except (TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
    return json.loads(json.dumps({"is": found, "said": [str(warning.message) for warning in said]}))


def told(found: Any) -> Any:
    """The same with numbers to twelve digits: the last few are of the processor's exp and log."""
    if isinstance(found, dict):
        return {name: told(value) for name, value in found.items()}
    if isinstance(found, list):
        return [told(value) for value in found]
    return pytest.approx(found, rel=1e-12) if isinstance(found, float) else found


@pytest.mark.thinned
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_given_the_plan_that_it_was_given(name: str) -> None:
    assert answer(REQUESTS[name]) == told(json.loads(KEPT.read_text(encoding="utf-8"))[name])


if __name__ == "__main__":
    kept = {name: answer(given) for name, given in REQUESTS.items()}
    text = json.dumps(kept, indent=0, ensure_ascii=False, sort_keys=True)
    KEPT.write_text(text + "\n", encoding="utf-8")

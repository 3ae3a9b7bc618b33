"""Verdicts, p-values and bounds of audits on fixed numbers, as they were when this was written.

``python tests/auditing/test_golden.py`` writes ``golden.json`` anew, for a change that is meant to
change a number; it must say why.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.accounting.tradeoff import from_epsilon_delta, gaussian
from forethought.auditing import (
    attack,
    exact_tests,
    noise,
    participation,
    sensitivity,
)
from forethought.auditing.canaries import LEVELS
from forethought.auditing.replay import replaying
from forethought.auditing.verdict import Audit
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import Local
from forethought.values.plan import Plan

GOLDEN = Path(__file__).with_name("golden.json")
BANDS = ft.Banded((1.0, 0.6, 0.4, 0.2))


def plan_of(sampling: Any, adjacency: str = "zero-out", rounds: int = 12, **options: Any) -> Plan:
    kind = "group" if "groups" in options else "example"
    part = ft.Rounds(1.0, rounds, sampling, kind)
    return Plan(ft.Mechanism(part, adjacency=adjacency), 400, 1e-5, **options)


def correlated() -> Plan:
    part = ft.Correlated(1.0, 12, ft.CyclicPoisson(0.5, 4), strategy=BANDS)
    return Plan(ft.Mechanism(part, adjacency="zero-out"), 400, 1e-5)


PLANS = {
    "poisson": plan_of(ft.Poisson(0.1)),
    "replaced": plan_of(ft.Poisson(0.1), "replace-one"),
    "subsets": plan_of(ft.WithoutReplacement(40, 400)),
    "shuffled": plan_of(ft.Shuffled(90, 400)),
    "allocated": plan_of(ft.RandomAllocation(4)),
    "parts": plan_of(ft.CyclicPoisson(0.5, 4)),
    "full": plan_of(ft.FullBatch(), rounds=3),
    "correlated": correlated(),
    "groups": plan_of(ft.Poisson(0.1), groups=3),
    "local": plan_of(ft.Poisson(0.1), groups=3, local=Local("adam", 0.1, step=16)),
    "automatic": plan_of(ft.Poisson(0.1), clip=ft.Clip(0.3, "automatic")),
    "quantile": plan_of(ft.Poisson(0.1), clip=ft.Clip(1.0, "quantile", count_noise=5.0)),
    "grid": plan_of(ft.Poisson(0.1), noise="grid"),
}


def source() -> np.random.Generator:
    return np.random.default_rng(1)


def written(value: Any) -> Any:
    """Plain JSON of a value; every digit of a number."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: written(part) for name, part in asdict(value).items()}
    if isinstance(value, dict):
        return {str(name): written(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return written(value.tolist())
    if isinstance(value, list | tuple):
        return [written(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def of_batches() -> dict[str, Any]:
    """Findings about runs without noise, of every kind of sampling and clipping."""
    small = replace(LEVELS["quick"], hits=2_000)
    found = {}
    for name, plan in PLANS.items():
        seen = participation.dry_run(participation.dry_plan(plan, small), seed=3)
        part = seen.plan.mechanism.rounds[0]
        own = (
            participation.contributions(seen)
            if plan.groups is None
            else participation.group_contributions(seen, source())
        )
        found[name] = own + participation.sampling_findings(
            part.sampling, seen.members, seen.plan.examples, source()
        )
        if plan.clip.rule == "quantile":  # the run's own norms follow from noise without a seed
            norms = np.exp(0.02 * source().standard_normal(seen.plan.rounds).cumsum())
            moved = replace(seen, clip_norms=tuple(norms.tolist()))
            found[name] = [participation.count_noise(moved, source())]
    return found


def of_noise() -> dict[str, Any]:
    """Findings about fixed numbers: a seeded run's own follow the last bits of its sums."""
    rows = source().standard_normal((8, 500))
    found: dict[str, Any] = {
        "independent": noise.noise_findings(list(rows)),
        "repeated": noise.noise_findings([*rows[:7], rows[0]]),
        "constant": noise.noise_findings([*rows[:7], np.full(500, 0.5)]),
        "grid": noise.noise_findings(list(np.round(rows * 16) / 16), grid=True),
    }
    found["whitened"] = noise.whitened(correlated().mechanism, list(rows))[3][:5]
    return found


def of_scores() -> dict[str, Any]:
    """Scores of simulated games and what an attack does with them."""
    found: dict[str, Any] = {}
    for name in ("poisson", "replaced", "subsets", "shuffled", "allocated", "parts", "correlated"):
        mechanism = PLANS[name].mechanism
        distance = attack.contributions(PLANS[name])
        std = noise.scales(PLANS[name])
        made = [attack.simulate(mechanism, std, 300, shift, source()) for shift in distance]
        played = [attack.log_likelihood_ratio(mechanism, std, seen, *distance) for seen in made]
        games = attack.Games(played[1], played[0], independent=name != "subsets")
        found[name] = [games.inside[:4], games.outside[:4]]
        if name in ("poisson", "subsets", "correlated"):
            finding, chosen = attack.judge(PLANS[name], games)
            found[name] += [finding, chosen, attack.summarise(PLANS[name], games, chosen)]
            found[name] += [attack.guessed(games), attack.points(games, 4)]
    directed = attack._few_records(PLANS["groups"])
    seen = source().standard_normal((directed.rounds, 1))
    found["directed"] = attack._directed_score(directed, seen)
    return found


def of_tests() -> dict[str, Any]:
    """Single tests and bounds."""
    z, counts, claim = source().standard_normal(300), [3, 0, 7, 40], gaussian(1.0)
    joint = [
        attack.JointErrors(false, 300, missed, 280, 1.3, independent).p_value(claim)
        for false, missed in ((20, 90), (60, 150), (0, 0))
        for independent in (True, False)
    ]
    return {
        "binomial": exact_tests.uniform_binomial(counts, 40, 0.1, source()),
        "hypergeometric": exact_tests.uniform_hypergeometric([3, 0, 5], 30, 11, 7, source()),
        "pairs": exact_tests.uniform_pairs([1, 2, 0], 9, [5, 8, 3], source()),
        "p": [
            exact_tests.binomial_p(7, 40, 0.1),
            exact_tests.normal_p(z),
            exact_tests.spread_p(z),
            exact_tests.uniform_p(np.linspace(0.01, 0.99, 9)),
            exact_tests.kolmogorov_smirnov_p(z),
        ],
        "shares": [
            end(k, 200, 0.01, independent)
            for end in (exact_tests.share_at_most, exact_tests.share_at_least)
            for k in (0, 3, 120, 200)
            for independent in (True, False)
        ],
        "joint": joint,
        "guesses": [
            attack.epsilon_of_guesses(*given, 1e-5, 0.05)
            for given in ((1_000, 200, 170), (2_000, 40, 40), (300, 300, 201), (300, 100, 51))
        ],
        "one run": [
            attack.one_run_p_value(*given, of)
            for given in ((1_000, 200, 170), (2_000, 40, 40), (300, 300, 151), (300, 60, 50))
            for of in (claim, from_epsilon_delta(0.8, 0.01))
        ],
        "one run f-DP": attack.one_run_fdp_epsilon(
            ft.Mechanism(ft.Rounds(2.0, 4, ft.FullBatch())), [(100, 85), (400, 280)], 2_000, 1e-5
        ),
        "thresholds": attack.decision_rule(PLANS["poisson"], 400),
    }


def of_sensitivity() -> dict[str, Any]:
    """Distances that one record moves a sum."""
    planted = {
        name: sensitivity.planted_sensitivity(PLANS[name])
        for name in ("poisson", "replaced", "groups", "automatic")
    }
    draw = np.random.default_rng(5)
    inputs = torch.from_numpy(draw.standard_normal((60, 6))).float()
    records = TensorRecords(inputs, torch.from_numpy(draw.integers(0, 3, 60)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    plan = PLANS["poisson"].with_(
        mechanism=ft.Mechanism(ft.Rounds(1.0, 3, ft.Poisson(0.3))), examples=60
    )
    found = sensitivity.model_sensitivity(
        model, records, plan, cross_entropy, LEVELS["quick"], source()
    )
    return {"planted": planted, "model": found}


def of_replays() -> dict[str, Any]:
    """Seeded runs beside the reference."""
    draw = np.random.default_rng(6)
    inputs = torch.from_numpy(draw.standard_normal((400, 5))).float()
    data = inputs, torch.from_numpy(draw.integers(0, 3, 400))
    found = {}
    for name, plan in PLANS.items():
        part = plan.mechanism.rounds[0]
        short = plan.with_(mechanism=plan.mechanism.first(min(2, part.count)))
        torch.manual_seed(0)
        with replaying() as replay:
            ft.train(nn.Linear(5, 3), data, short, seed=1, noise_seed=2, diagnostics=False)
        found[name] = [replay.findings(), replay.compared, replay.refusals]
    return found


COMPUTED = {
    "batches": of_batches,
    "noise": of_noise,
    "scores": of_scores,
    "tests": of_tests,
    "sensitivity": of_sensitivity,
    "replays": of_replays,
}


def test_an_audit_as_json() -> None:
    findings = tuple(of_tests_findings())
    found = json.loads(json.dumps(written(Audit(findings, 1e-4, notes=("one",)).to_dict())))
    same(found, json.loads(GOLDEN.read_text(encoding="utf-8"))["audit"], EXACT, "audit")


def of_tests_findings() -> Any:
    numbers = list(np.random.default_rng(2).standard_normal((4, 200)) * 0.9)
    return noise.noise_findings(numbers)


# The last digits of sums over many numbers are the machine's own: relative and absolute tolerance.
LOOSE = {"replays": (1e-2, 1e-12), "sensitivity": (1e-5, 1e-12)}
EXACT = (1e-9, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTED)
def test_numbers_stay_as_they_were(name: str) -> None:
    wanted = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    found = json.loads(json.dumps(written(COMPUTED[name]())))
    same(found, wanted, LOOSE.get(name, EXACT), name)


def same(found: Any, wanted: Any, near: tuple[float, float], where: str) -> None:
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for key in wanted:
            same(found[key], wanted[key], near, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            same(one, other, near, f"{where}[{place}]")
    elif where.startswith("replays") and where.endswith(".off"):  # of what rounding allows
        assert (found <= 1) == (wanted <= 1), where
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=near[0], abs=near[1], nan_ok=True), where
    elif not (isinstance(wanted, str) and near != EXACT):  # words hold the same digits
        assert found == wanted, where


if __name__ == "__main__":
    computed: dict[str, Any] = {name: compute() for name, compute in COMPUTED.items()}
    computed["audit"] = Audit(tuple(of_tests_findings()), 1e-4, notes=("one",)).to_dict()
    GOLDEN.write_text(json.dumps(written(computed), ensure_ascii=False, indent=0) + "\n", "utf-8")

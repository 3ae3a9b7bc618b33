"""What an audit costs, what its attack shows, and how often it is wrong about sound runs.

    python benchmarks/auditing.py                 # time and empirical ε at the trial's setting
    python benchmarks/auditing.py --sound 1000    # audits of sound plans: how many are refuted
    python benchmarks/auditing.py --one-run       # how near one run of one's own model comes
    python benchmarks/auditing.py --jax           # jax-privacy's canary auditor side by side

Source of the setting: Poisson sampling, σ = 1, 100 rounds, rate 0.1.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import forethought as ft
from forethought.auditing.attack import epsilon_of_guesses, judge, orthogonal_games, summarise
from forethought.auditing.audit import audit
from forethought.auditing.canaries import LEVELS
from forethought.auditing.one_run import one_run
from forethought.values.plan import Plan

ROUNDS, RATE, DELTA = 100, 0.1, 1e-5


def trial(canaries: int) -> Plan:
    """The setting that figures are quoted for, with as many records as canaries."""
    return Plan(ft.Mechanism(ft.Rounds(1.0, ROUNDS, ft.Poisson(RATE))), canaries, DELTA)


def sound_plans() -> dict[str, Plan]:
    """Small plans of every sampling, clipping rule and adjacency that audits are repeated on."""
    records = 500

    def plan(
        sampling: object, adjacency: str = "add-or-remove", sigma: float = 1.0, **options: object
    ) -> Plan:
        kind = "group" if "groups" in options else "example"
        part = ft.Rounds(sigma, 24, sampling, kind)
        return Plan(ft.Mechanism(part, adjacency=adjacency), records, DELTA, **options)

    two = ft.Mechanism(ft.Rounds(1.0, 12, ft.Poisson(0.1)), ft.Rounds(0.8, 12, ft.Poisson(0.05)))
    return {
        "poisson": plan(ft.Poisson(0.1)),
        "poisson, zero-out": plan(ft.Poisson(0.07), "zero-out"),
        "poisson, replace-one": plan(ft.Poisson(0.1), "replace-one", 2.0),
        "poisson, automatic": plan(ft.Poisson(0.1), clip=ft.Clip(0.5, "automatic")),
        "poisson, per layer": plan(ft.Poisson(0.1), clip=ft.Clip(2.0, "per-layer")),
        "poisson, quantile": plan(ft.Poisson(0.1), clip=ft.Clip(1.0, "quantile", count_noise=5.0)),
        "poisson, two parts": Plan(two, records, DELTA),
        "without replacement": plan(ft.WithoutReplacement(50, records), "zero-out"),
        "without replacement, replace-one": plan(ft.WithoutReplacement(50, records), "replace-one"),
        "shuffled": plan(ft.Shuffled(60, records), "zero-out"),
        "full batch": plan(ft.FullBatch(), sigma=8.0),
        "groups": plan(ft.Poisson(0.1), groups=3),
    }


def sound(audits: int, games: int = 6) -> tuple[int, Counter[str], list[float]]:
    """Audit sound plans again and again; returns how many were refuted, and why.

    Args:
        games: trainings where each plays one game only.
    """
    plans = list(sound_plans().items())
    sizes = replace(
        LEVELS["quick"],
        hits=2_000,
        dry_rounds=60,
        coordinates=6_000,
        canaries=400,
        directed_games=games,
        bounds=False,
    )
    refuted, smallest, reasons = 0, [], Counter[str]()
    for turn in range(audits):
        name, plan = plans[turn % len(plans)]
        found = audit(plan, level=sizes)
        tested = [f.p_value for f in found.findings if f.p_value is not None]
        smallest.append(min(1.0, len(tested) * min(tested)))
        if found.refuted:
            refuted += 1
            reasons[f"{name}: {found.reason}"] += 1
        if (turn + 1) % 100 == 0:
            print(f"{turn + 1} audits, {refuted} refuted", flush=True)
    return refuted, reasons, smallest


def empirical(canaries: int) -> None:
    """Play the games of the trial and print what they show."""
    plan, generator = trial(canaries), np.random.default_rng()
    start = time.perf_counter()
    games = orthogonal_games(plan, canaries, generator)
    _, chosen = judge(plan, games)
    found = summarise(plan, games, chosen)
    seconds = time.perf_counter() - start
    print(
        f"{canaries:7,} canaries: claimed {found.claimed_epsilon:.3f}, f-DP ≥ "
        f"{found.epsilon[0]:.2f}, one-run ≥ {found.one_run_epsilon or 0:.2f}, {seconds:.1f} s"
    )


def near(runs: int = 5) -> None:
    """Medians of what one run of a small model with Dirac canaries shows, by its three bounds."""
    source = np.random.default_rng(0)
    for mu in (0.5, 1.0, 2.0):
        for canaries in (2_000, 10_000):
            plan = Plan(ft.Mechanism(ft.Rounds(2 / mu, 4, ft.FullBatch())), canaries, DELTA)
            data = (source.standard_normal((canaries, 8)), source.integers(3, size=canaries))
            shown = []
            for _ in range(runs):
                attack = one_run(plan, nn.Linear(8, 3), data, number=canaries).attack
                assert attack is not None and attack.epsilon is not None
                shown.append((attack.fdp_epsilon, attack.one_run_epsilon, attack.epsilon[0]))
            fdp, plain, alone = np.median(np.array(shown, dtype=float), axis=0)
            print(
                f"{canaries:7,} canaries: claimed {attack.claimed_epsilon:.2f}, one run by f-DP ≥ "
                f"{fdp:.2f}, by (ε, δ) ≥ {plain:.2f}, f-DP inference ≥ {alone:.2f}"
            )


def jax_auditor() -> Any:
    """jax-privacy's auditing module, from its file: it needs no JAX, the package around it does.

    ``pip install --no-deps jax-privacy`` suffices, beside dp-accounting.
    """
    package = importlib.util.find_spec("jax_privacy")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("jax-privacy is not installed: pip install --no-deps jax-privacy")
    file = Path(package.submodule_search_locations[0]) / "auditing.py"
    spec = importlib.util.spec_from_file_location("jax_privacy_auditing", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def side_by_side(canaries: int = 2_000) -> None:
    """The same scores through both auditors."""
    theirs = jax_auditor()
    full = ft.Rounds(10.0, ROUNDS, ft.FullBatch())
    for name, plan in (
        ("Poisson, σ 1, rate 0.1", trial(canaries)),
        ("full batch, σ 10 (μ = 1)", Plan(ft.Mechanism(full), canaries, DELTA)),
    ):
        games = orthogonal_games(plan, canaries, np.random.default_rng())
        _, chosen = judge(plan, games)
        ours = summarise(plan, games, chosen)
        auditor = theirs.CanaryScoreAuditor(games.inside, games.outside)
        explicit = theirs.Explicit(chosen.thresholds[0])
        print(f"{name}: claimed {ours.claimed_epsilon:.3f}")
        print(f"  ours, f-DP                        {ours.epsilon[0]:.2f}")
        print(f"  ours, one run                     {ours.one_run_epsilon or 0:.2f}")
        for method, strategy in (
            ("epsilon_one_run", {}),
            ("epsilon_one_run", {"threshold_strategy": explicit}),
            ("epsilon_one_run_fdp", {"threshold_strategy": explicit}),
            ("epsilon_clopper_pearson", {}),
            ("epsilon_clopper_pearson", {"threshold_strategy": explicit}),
            ("epsilon_from_gdp", {}),
        ):
            found = getattr(auditor, method)(0.05, DELTA, **strategy)
            how = ", our threshold" if strategy else ""
            print(f"  {'theirs, ' + method + how:50} {found:.2f}")
        # Their algorithm on our counts, and ours: the same bound.
        count = len(games.outside) + len(games.inside)
        for guesses, right in ((200, 170), (100, 99)):
            mine = epsilon_of_guesses(count, guesses, right, DELTA, 0.05)
            other = theirs._epsilon_one_run(0.0, count, guesses, right, 0.05, DELTA)
            print(f"  {right} of {guesses} guesses: ours {mine:.5f}, theirs {other:.5f}")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="seconds, for CI")
    parser.add_argument("--sound", type=int, default=0, metavar="AUDITS")
    parser.add_argument("--one-run", action="store_true", help="one run of a model of one's own")
    parser.add_argument("--jax", action="store_true", help="jax-privacy side by side")
    arguments = parser.parse_args()
    if arguments.one_run:
        near()
        return
    if arguments.jax:
        side_by_side()
        return
    if arguments.sound:
        refuted, reasons, smallest = sound(arguments.sound)
        print(f"{refuted} of {arguments.sound} audits of sound plans refuted")
        for reason, count in reasons.items():
            print(f"  {count}: {reason}")
        ranks = np.sort(smallest)
        print("smallest p-value times its number, quantiles 0.1 % 1 % 10 % 50 %:")
        print("  ", *(f"{np.quantile(ranks, q):.4g}" for q in (0.001, 0.01, 0.1, 0.5)))
        return
    for canaries in (300,) if arguments.smoke else (2_000, 20_000):
        empirical(canaries)
    if not arguments.smoke:
        for level in ("quick", "standard"):
            start = time.perf_counter()
            found = ft.audit(trial(2_000), level=level)
            print(f"whole audit, {level}: {time.perf_counter() - start:.1f} s, {found.refuted}")


if __name__ == "__main__":
    main()

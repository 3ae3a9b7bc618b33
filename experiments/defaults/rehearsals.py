"""How good is a rehearsal's prediction? Pairs of a public and a private set, see pairs.py.

    python experiments/defaults/rehearsals.py --data ../shared/data            # an hour, resumes
    python experiments/defaults/rehearsals.py --data ../shared/data --pairs 5  # a taste

For every pair: the default plan, rehearsed on the public set, and run once on the private one.
Finished pairs are kept in rehearsals.jsonl and not run again. The intervals are calibrated on the
pairs of the first families and tested on those of the others; rehearsals.md has the result, and
`--constants` prints what :mod:`forethought.utility.resemblance` bundles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from pairs import CALIBRATED_ON, HELD_OUT, RELATIONS, Pair, pair
from scipy.stats import binomtest

import forethought as ft
from forethought.models import build
from forethought.planning.defaults import default_delta
from forethought.training.coincidence import CoincidingRecordsError
from forethought.utility.rehearsal import rehearse, synthetic
from forethought.utility.resemblance import SCORES, calibrated, score

HERE = Path(__file__).parent
RESULTS = HERE / "rehearsals.jsonl"
PAIRS = 60  # of a relation, calibrated on and held out each
REPEATS = 6
SPLITS = {"calibrated": CALIBRATED_ON, "held out": HELD_OUT}


def measured(found: Pair, seed: int) -> dict[str, Any]:
    """The prediction for a pair's private set beside what one run achieves there."""
    examples, width = found.train[0].shape
    plan = ft.plan(
        examples=examples,
        budget=ft.Budget(found.epsilon, default_delta(examples)),
        parameters=(width + 1) * found.classes,
    )

    def model() -> torch.nn.Module:
        return build("linear", inputs=(width,), classes=found.classes)

    tested = len(found.test[1])
    if found.public is None:
        source, asked = synthetic((width,), found.classes, examples), None
    else:
        # A public set hardly larger than the private one is tested on a fifth of itself.
        source, asked = found.public, min(tested, len(found.public.train) // 5)
    rehearsed = rehearse(
        plan, model, source, repeats=REPEATS, test_examples=asked, micro_batch=4096, seed=seed
    )
    torch.manual_seed(seed + 1)
    run = ft.train(
        model(),
        found.train,
        plan,
        test=found.test,
        micro_batch=4096,
        seed=seed + 1,
        noise_seed=seed + 1,
        log_every=plan.rounds,
        diagnostics=False,
    )
    low, high = rehearsed.run_interval
    return {
        "pair": found.name,
        "examples": examples,
        "tested": tested,
        "epsilon": found.epsilon,
        "predicted": round(rehearsed.predicted, 5),
        "low": round(low, 5),
        "high": round(high, 5),
        "achieved": round(float(run.accuracy or 0), 5),
    }


def finished() -> dict[tuple[str, str, int], dict[str, Any]]:
    """Every pair that was run, by split, relation and number."""
    if not RESULTS.exists():
        return {}
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return {(row["split"], row["relation"], row["number"]): row for row in rows}


def scores_of(rows: Iterable[dict[str, Any]], relation: str) -> list[float]:
    """Scores of the calibrated pairs, as they are bundled."""
    return sorted(
        round(score((row["low"], row["high"]), row["achieved"]), 3)
        for row in rows
        if (row["split"], row["relation"]) == ("calibrated", relation) and "low" in row
    )


def table(rows: list[dict[str, Any]]) -> str:
    """What the held-out pairs say, as markdown."""
    lines = [
        "Made by `python experiments/defaults/rehearsals.py`. Intervals of 90 %, calibrated on "
        f"pairs of {', '.join(CALIBRATED_ON)}; held out are pairs of {', '.join(HELD_OUT)}.",
        "",
        "| relation | pairs calibrated on | held out | achieved inside | share, 95 % interval "
        "| inside the run's own interval | median width, points | median error | largest error |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    inside_all = count_all = 0
    for relation in RELATIONS:
        scores = scores_of(rows, relation)
        held = [
            row
            for row in rows
            if (row["split"], row["relation"]) == ("held out", relation) and "low" in row
        ]
        if not held or not scores:
            continue
        intervals = [calibrated((r["low"], r["high"]), scores, 0.9) or (0.0, 1.0) for r in held]
        inside = sum(
            low <= row["achieved"] <= high for row, (low, high) in zip(held, intervals, strict=True)
        )
        alone = sum(row["low"] <= row["achieved"] <= row["high"] for row in held)
        errors = [100 * abs(row["predicted"] - row["achieved"]) for row in held]
        worst = held[errors.index(max(errors))]
        width = statistics.median(100 * (high - low) for low, high in intervals)
        lines.append(
            f"| {relation} | {len(scores)} | {len(held)} | {inside} | {said(inside, len(held))} | "
            f"{alone} | {width:.1f} | {statistics.median(errors):.1f} | {max(errors):.1f} "
            f"({worst['pair']}) |"
        )
        if relation in SCORES:  # the others' intervals are not offered
            inside_all, count_all = inside_all + inside, count_all + len(held)
    if count_all:
        told = said(inside_all, count_all)
        lines.append(f"| the two offered |  | {count_all} | {inside_all} | {told} |  |  |  |  |")
    refused = [row for row in rows if "refused" in row]
    if refused:
        lines += [
            "",
            f"{len(refused)} pairs could not be rehearsed: their tables, cut to a few columns, "
            "hold records twice.",
        ]
    lines += ["", "Held-out pairs inside, of all four relations, by data set and by ε:", ""]
    for key in ("family", "epsilon"):
        found: dict[str, list[bool]] = {}
        for row in rows:
            if row["split"] != "held out" or "low" not in row:
                continue
            scores = scores_of(rows, row["relation"])
            low, high = calibrated((row["low"], row["high"]), scores, 0.9) or (0.0, 1.0)
            name = row["pair"].split(",")[0] if key == "family" else f"ε = {row['epsilon']:g}"
            found.setdefault(name, []).append(low <= row["achieved"] <= high)
        lines.append(
            "; ".join(f"{name} {sum(of)} of {len(of)}" for name, of in sorted(found.items()))
            + ".\n"
        )
    return "\n".join(lines)


def said(inside: int, count: int) -> str:
    """A share with its exact binomial interval."""
    found = binomtest(inside, count).proportion_ci(0.95)
    return f"{inside / count:.0%}, {found.low:.0%} to {found.high:.0%}"


def main() -> None:
    """Run the pairs that are missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each relation and split")
    parser.add_argument("--constants", action="store_true", help="print what is bundled; run none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    done = finished()
    if args.constants:
        for relation in RELATIONS:
            print(relation, scores_of(done.values(), relation))
        return
    for number in range(args.pairs):
        for split, families in SPLITS.items():
            for relation in RELATIONS:
                if (split, relation, number) in done:
                    continue
                start = time.process_time()
                found = pair(relation, number, families, args.data)
                try:
                    values = measured(found, 1_000 * number)
                except CoincidingRecordsError as error:
                    # Tables cut to a few columns hold records twice, which training refuses.
                    values = {"pair": found.name, "refused": str(error).split(":")[0]}
                row = {"split": split, "relation": relation, "number": number, **values}
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(row, f"{time.process_time() - start:.1f} s", flush=True)
    rows = list(finished().values())
    (HERE / "rehearsals.md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

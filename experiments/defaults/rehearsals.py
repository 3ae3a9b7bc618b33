"""How good is a rehearsal's prediction? Pairs of a public and a private set, see pairs.py.

    python experiments/defaults/rehearsals.py --data ../shared/data            # an hour, resumes
    python experiments/defaults/rehearsals.py --data ../shared/data --model mlp
    python experiments/defaults/rehearsals.py --data ../shared/data --pairs 5  # a taste
    python experiments/defaults/rehearsals.py --render    # rehearsals.md; none is run

For every pair: the default plan, rehearsed on the public set, and run once on the private one.
Finished pairs are kept in rehearsals.jsonl and not run again. The intervals are calibrated on the
pairs of the first families and tested on those of the others; rehearsals.md has the result, and
`--constants` prints what :mod:`forethought.utility.resemblance` bundles. A perceptron is run on the
pairs of the relations whose intervals are offered.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fresh_pairs import ANOTHER_SOURCE, fresh_pair
from pairs import CALIBRATED_ON, HELD_OUT, RELATIONS, Arrays, Pair, pair
from scipy.stats import binomtest

import forethought as ft
from forethought.data.dataset import Split
from forethought.models import build
from forethought.planning.defaults import default_delta
from forethought.training.coincidence import CoincidingRecordsError
from forethought.utility.rehearsal import rehearse, synthetic
from forethought.utility.resemblance import SCORES, calibrated, score

HERE = Path(__file__).parent
RESULTS = HERE / "rehearsals.jsonl"
PAIRS = 60  # of a relation, calibrated on and held out each
REPEATS = 6
MODELS = ("linear", "mlp")
FRESH_MODELS = (*MODELS, "cnn")
HIDDEN = 32  # of the perceptron
LENET_SIDE = 12  # pixels; smaller images are given to the small CNN
FRESH = {"same source": 66, "same task": 66, ANOTHER_SOURCE: 8}
OF_CONVOLUTIONAL = {"same source": 27, "same task": 27, ANOTHER_SOURCE: 8}
SPLITS = {"calibrated": CALIBRATED_ON, "held out": HELD_OUT}


def measured(found: Pair, seed: int, name: str) -> dict[str, Any]:
    """The prediction for a pair's private set beside what one run achieves there."""
    examples, width = found.train[0].shape
    shape: tuple[int, ...] = (width,)
    if name == "cnn":
        found, shape = as_images(found)

    def model() -> torch.nn.Module:
        if name == "cnn":
            built = "lenet5" if shape[1] >= LENET_SIDE else "cnn"
            return build(built, inputs=shape, classes=found.classes)
        options = {"hidden": HIDDEN} if name == "mlp" else {}
        return build(name, inputs=shape, classes=found.classes, **options)

    known: dict[str, Any] = {"parameters": (width + 1) * found.classes}
    if name != "linear":
        known = {"model": model, "shape": shape}
    budget = ft.Budget(found.epsilon, default_delta(examples))
    plan = ft.plan(examples=examples, budget=budget, **known)

    tested = len(found.test[1])
    if found.public is None:
        source, asked = synthetic(shape, found.classes, examples), None
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


def as_images(found: Pair) -> tuple[Pair, tuple[int, ...]]:
    """A pair of square grey images as such, and the shape of one."""
    side = math.isqrt(found.train[0].shape[1])
    shape = (1, side, side)

    def part(data: Arrays) -> Arrays:
        return data[0].reshape(-1, *shape), data[1]

    public = found.public
    if public is not None:
        pool = Split(*part((public.train.inputs, public.train.targets)))
        public = replace(public, train=pool)
    return replace(found, train=part(found.train), test=part(found.test), public=public), shape


def finished() -> dict[tuple[str, str, str, int], dict[str, Any]]:
    """Every pair that was run, by model, split, relation and number."""
    if not RESULTS.exists():
        return {}
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return {(row["model"], row["split"], row["relation"], row["number"]): row for row in rows}


Row = dict[str, Any]


def rows_of(rows: Iterable[Row], model: str, split: str, relation: str) -> list[Row]:
    """The pairs that could be rehearsed."""
    wanted = (model, split, relation)
    return [r for r in rows if (r["model"], r["split"], r["relation"]) == wanted and "low" in r]


def scores_of(rows: Iterable[Row], model: str, relation: str) -> list[float]:
    """Scores of the calibrated pairs, as they are bundled."""
    found = rows_of(rows, model, "calibrated", relation)
    return sorted(round(score((row["low"], row["high"]), row["achieved"]), 3) for row in found)


def held_in(row: Row, scores: list[float], narrows: bool) -> tuple[float, float]:
    """A pair's interval of 90 %, calibrated by these scores."""
    return calibrated((row["low"], row["high"]), scores, 0.9, narrows=narrows) or (0.0, 1.0)


def inside(rows: list[Row], scores: list[float], narrows: bool) -> int:
    """How many pairs' intervals hold what was achieved."""
    ends = [held_in(row, scores, narrows) for row in rows]
    return sum(low <= row["achieved"] <= high for row, (low, high) in zip(rows, ends, strict=True))


def line(called: str, held: list[Row], scores: list[float], narrows: bool) -> str:
    """What one relation's held-out pairs say, as a row of a table."""
    widths = [100 * (high - low) for low, high in (held_in(row, scores, narrows) for row in held)]
    errors = [100 * abs(row["predicted"] - row["achieved"]) for row in held]
    worst = held[errors.index(max(errors))]
    count = inside(held, scores, narrows)
    alone = sum(row["low"] <= row["achieved"] <= row["high"] for row in held)
    return (
        f"| {called} | {len(scores)} | {len(held)} | {count} | {said(count, len(held))} | "
        f"{alone} | {statistics.median(widths):.1f} | {statistics.median(errors):.1f} | "
        f"{max(errors):.1f} ({worst['pair']}) |"
    )


def table(rows: list[Row]) -> str:
    """What the held-out pairs say, as markdown."""
    lines = [
        "Made by `python experiments/defaults/rehearsals.py`. Intervals of 90 %, calibrated on "
        f"pairs of {', '.join(CALIBRATED_ON)}; held out are pairs of {', '.join(HELD_OUT)}.",
        "",
        "| relation | pairs calibrated on | held out | achieved inside | share, 95 % interval "
        "| inside the run's own interval | median width, points | median error | largest error |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for model in MODELS:
        of_model = "" if model == "linear" else ", perceptron"
        count = total = 0
        for relation in RELATIONS:
            scores = scores_of(rows, model, relation)
            held = rows_of(rows, model, "held out", relation)
            if not held or not scores:
                continue
            lines.append(line(relation + of_model, held, scores, model == "linear"))
            if relation in SCORES:  # the others' intervals are not offered
                count += inside(held, scores, model == "linear")
                total += len(held)
        if total:
            told = f"{total} | {count} | {said(count, total)}"
            lines.append(f"| the two offered{of_model} |  | {told} |  |  |  |  |")
    for words, model in (("the pairs of linear models", "linear"), ("its own", "mlp")):
        of_perceptron = {name: rows_of(rows, "mlp", "held out", name) for name in SCORES}
        total = sum(map(len, of_perceptron.values()))
        count = sum(
            inside(held, scores_of(rows, model, name), True) for name, held in of_perceptron.items()
        )
        lines += [
            "",
            f"Calibrated on {words}, and narrowed where these allow it, the perceptron's intervals "
            f"held {count} of {total} ({said(count, total)}).",
        ]
    refused = [row for row in rows if "refused" in row]
    if refused:
        lines += [
            "",
            f"{len(refused)} pairs could not be rehearsed: their tables, cut to a few columns, "
            "hold records twice.",
        ]
    lines += ["", "Held-out pairs of linear models inside, by data set and by ε:", ""]
    offered = "of the two relations offered", tuple(SCORES)
    others = "of the others", tuple(name for name in RELATIONS if name not in SCORES)
    for words, relations in (offered, others):
        held = [row for name in relations for row in rows_of(rows, "linear", "held out", name)]
        for key in ("family", "epsilon"):
            found: dict[str, list[bool]] = {}
            for row in held:
                name = row["pair"].split(",")[0] if key == "family" else f"ε = {row['epsilon']:g}"
                one = inside([row], scores_of(rows, "linear", row["relation"]), True) == 1
                found.setdefault(name, []).append(one)
            told = [f"{name} {sum(of)} of {len(of)}" for name, of in sorted(found.items())]
            lines.append(f"- {words}: {'; '.join(told)}.")
    return "\n".join(lines) + "\n"


def said(inside: int, count: int) -> str:
    """A share with its exact binomial interval."""
    found = binomtest(inside, count).proportion_ci(0.95)
    return f"{inside / count:.0%}, {found.low:.0%} to {found.high:.0%}"


def main() -> None:
    """Run the pairs that are missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--pairs", type=int, help="of each relation and split; default: all")
    known = (*RELATIONS, ANOTHER_SOURCE)
    parser.add_argument("--relation", nargs="+", choices=known, default=list(known))
    parser.add_argument("--model", choices=FRESH_MODELS, default="linear")
    parser.add_argument("--fresh", action="store_true", help="the pairs of fresh_pairs.py")
    parser.add_argument("--constants", action="store_true", help="print what is bundled; run none")
    parser.add_argument("--render", action="store_true", help="write rehearsals.md and stop")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.constants:
        rows = list(finished().values())
        for model in MODELS:
            for relation in RELATIONS:
                scores = scores_of(rows, model, relation)
                held = rows_of(rows, model, "held out", relation)
                count = inside(held, scores, model == "linear")
                print(model, relation, f"{count} of {len(held)} held out", scores)
        return
    if args.model == "cnn" and not (args.fresh or args.render):
        parser.error("--model cnn goes with --fresh: no pair is calibrated on with it")
    if not args.render:
        chosen, most = (run_fresh, max(FRESH.values())) if args.fresh else (run, PAIRS)
        chosen(args.model, args.relation, args.pairs or most, args.data)
    rows = list(finished().values())
    (HERE / "rehearsals.md").write_text(table(rows), encoding="utf-8")


def run(model: str, relations: list[str], pairs: int, folder: Path | None) -> None:
    """Run the pairs that are missing."""
    done = finished()
    known = RELATIONS if model == "linear" else tuple(SCORES)
    wanted = [name for name in relations if name in known]
    for number in range(pairs):
        for split, families in SPLITS.items():
            for relation in wanted:
                if (model, split, relation, number) in done:
                    continue
                found = pair(relation, number, families, folder)
                keep(found, model, split, relation, number)


def run_fresh(model: str, relations: list[str], pairs: int, folder: Path | None) -> None:
    """Run the fresh pairs that are missing."""
    done = finished()
    wanted = OF_CONVOLUTIONAL if model == "cnn" else FRESH
    for number in range(pairs):
        for relation, most in wanted.items():
            missing = (model, "fresh", relation, number) not in done
            if missing and number < most and relation in relations:
                found = fresh_pair(relation, number, model == "cnn", folder)
                keep(found, model, "fresh", relation, number)


def keep(found: Pair, model: str, split: str, relation: str, number: int) -> None:
    """Run a pair and append its row to those that are kept."""
    start = time.process_time()
    try:
        values = measured(found, 1_000 * number, model)
    except CoincidingRecordsError as error:
        # Tables cut to a few columns hold records twice, which training refuses.
        values = {"pair": found.name, "refused": str(error).split(":")[0]}
    key = {"model": model, "split": split, "relation": relation, "number": number}
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**key, **values}, ensure_ascii=False) + "\n")
    print({**key, **values}, f"{time.process_time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()

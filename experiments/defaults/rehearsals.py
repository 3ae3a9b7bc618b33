"""How good is a rehearsal's prediction? Pairs of a public and a private set.

    python experiments/defaults/rehearsals.py --data ../shared/data            # an hour, resumes
    python experiments/defaults/rehearsals.py --data ../shared/data --model mlp
    python experiments/defaults/rehearsals.py --data ../shared/data --fresh --model linear  # or mlp
    python experiments/defaults/rehearsals.py --data ../shared/data --fresh --model cnn
    python experiments/defaults/rehearsals.py --data ../shared/data --pairs 5  # a taste
    python experiments/defaults/rehearsals.py --render    # rehearsals.md; none is run

For every pair: the default plan, rehearsed on the public set, and run once on the private one.
Finished pairs are kept in rehearsals.jsonl and not run again. The intervals are calibrated on the
pairs of pairs.py and tested on those of fresh_pairs.py, by the rule that is written there;
rehearsals.md has the result, and `--constants` writes the scores that
:mod:`forethought.utility.rehearsal` bundles and prints how often its intervals held.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fresh_pairs import ANOTHER_SOURCE, fresh_pair
from pairs import CALIBRATED_ON, HELD_OUT, RELATIONS, Arrays, Pair, pair
from rehearsal_tables import constants, page

import forethought as ft
from forethought.data.dataset import Split
from forethought.models import build
from forethought.planning.defaults import default_delta
from forethought.training.records import CoincidingRecordsError
from forethought.utility.rehearsal import SCORES, SyntheticSource, rehearse

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
        source, asked = SyntheticSource(shape, found.classes, examples), None
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
        constants(list(finished().values()))
        return
    if args.model == "cnn" and not (args.fresh or args.render):
        parser.error("--model cnn goes with --fresh: no pair is calibrated on with it")
    if not args.render:
        chosen, most = (run_fresh, max(FRESH.values())) if args.fresh else (run, PAIRS)
        chosen(args.model, args.relation, args.pairs or most, args.data)
    rows = list(finished().values())
    (HERE / "rehearsals.md").write_text(page(rows), encoding="utf-8")


def run(model: str, relations: list[str], pairs: int, folder: Path | None) -> None:
    """Run the pairs that are missing."""
    done = finished()
    known = RELATIONS if model == "linear" else tuple(SCORES["linear"])
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

"""How good is a rehearsal's prediction? Pairs of a public and a private set, see pairs.py.

    python experiments/defaults/rehearsals.py --data ../shared/data            # 20 minutes, resumes
    python experiments/defaults/rehearsals.py --data ../shared/data --pairs 5  # a taste

For every pair: the default plan, rehearsed on the public set, and run once on the private one.
Finished pairs are kept in rehearsals.jsonl and not run again. The intervals are calibrated on the
pairs of the first families and tested on those of the others; rehearsals.md has the result, and
`--constants` prints what :mod:`forethought.utility.resemblance` bundles.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from pairs import CALIBRATED_ON, HELD_OUT, RELATIONS, Pair, pair

import forethought as ft
from forethought.models import build
from forethought.planning.defaults import default_delta
from forethought.utility.rehearsal import rehearse, synthetic

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
    low, high = rehearsed.interval
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


def main() -> None:
    """Run the pairs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each relation and split")
    args = parser.parse_args()
    torch.set_num_threads(1)
    done = finished()
    for number in range(args.pairs):
        for split, families in SPLITS.items():
            for relation in RELATIONS:
                if (split, relation, number) in done:
                    continue
                start = time.process_time()
                values = measured(pair(relation, number, families, args.data), 1_000 * number)
                row = {"split": split, "relation": relation, "number": number, **values}
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(row, f"{time.process_time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()

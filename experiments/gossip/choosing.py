"""Where a gradient is taken, and how often workers exchange: what both defaults were chosen on.

    python experiments/gossip/choosing.py --data ../shared/data              # σ = 4, two minutes
    python experiments/gossip/choosing.py --data ../shared/data --sigma 2

Not MNIST: Fashion-MNIST, a network of 784 to 64 to 32 to 10 units with tanh, in NumPy, so that a
run takes seconds; measured on 10,000 of its training records that nobody trains on. The rest is as
in run.py: 16 workers of 1,250 records, batches of 64, 78 rounds, clipped to 1, a cosine, and the
simulator itself. Rows are kept in choosing.jsonl, choosing.md is the table of all.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import forethought as ft
from forethought.data import load
from forethought.gossip.gossip import Gossip, Member, Rule
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.simulator import GraphSimulator, GraphTimes, NoTraining, Work

HERE = Path(__file__).parent
ROWS = HERE / "choosing.jsonl"
WORKERS, RECORDS, BATCH, ROUNDS, RATE, SEEDS = 16, 1250, 64, 78, 2.0, (11, 12, 13, 14)
WIDTHS = (784, 64, 32, 10)
# Exchanges in a computation.
EXCHANGES = (2, 4, 8)
Array = NDArray[np.float32]


def layers(weights: Array) -> list[tuple[Array, Array]]:
    """Matrix and offsets of each layer, from one vector."""
    found, place = [], 0
    for wide, narrow in pairwise(WIDTHS):
        matrix = weights[place : place + wide * narrow].reshape(wide, narrow)
        place += wide * narrow
        found.append((matrix, weights[place : place + narrow]))
        place += narrow
    return found


def outputs(weights: Array, inputs: Array) -> list[Array]:
    """Inputs, activations of every layer, and scores."""
    seen = [inputs]
    for place, (matrix, offsets) in enumerate(layers(weights)):
        scores = seen[-1] @ matrix + offsets
        seen.append(np.tanh(scores) if place < len(WIDTHS) - 2 else scores)
    return seen


def summed(weights: Array, inputs: Array, targets: NDArray[np.int64]) -> Array:
    """The sum of the records' gradients of cross-entropy, each clipped to norm 1."""
    *seen, scores = outputs(weights, inputs)
    errors = np.exp(scores - scores.max(1, keepdims=True))
    errors /= errors.sum(1, keepdims=True)
    errors[np.arange(len(targets)), targets] -= 1
    back = [errors]
    for (matrix, _), active in zip(layers(weights)[:0:-1], seen[:0:-1], strict=True):
        back.insert(0, (back[0] @ matrix.T) * (1 - active**2))
    squares = [
        ((active**2).sum(1) + 1) * (error**2).sum(1)
        for active, error in zip(seen, back, strict=True)
    ]
    short = np.minimum(1, 1 / np.sqrt(np.sum(squares, axis=0)))[:, None].astype(np.float32)
    parts = []
    for active, error in zip(seen, back, strict=True):
        parts += [(active.T @ (error * short)).ravel(), (error * short).sum(0)]
    return np.concatenate(parts)


def accuracy(
    data: tuple[Array, NDArray[np.int64]],
    rule: Rule,
    sigma: float,
    seed: int,
    point: Literal["average", "own"] = "average",
    exchanges: int = 8,
) -> float:
    """Of the average model, in per cent."""
    inputs, targets = data
    draw = np.random.default_rng([seed, 5])
    parts = draw.permutation(50_000)[: WORKERS * RECORDS].reshape(WORKERS, RECORDS)
    first = [
        np.append(draw.uniform(-1, 1, wide * narrow) / np.sqrt(wide), np.zeros(narrow))
        for wide, narrow in pairwise(WIDTHS)
    ]
    start = np.concatenate(first).astype(np.float32)
    rounds = round(1.2 * ROUNDS) if rule == "asynchronous" else ROUNDS
    plan = ft.Plan(
        ft.Mechanism(ft.Rounds(sigma, rounds, ft.Poisson(BATCH / RECORDS))),
        RECORDS,
        1 / RECORDS,
        ft.Clip(1.0),
        optimizer=ft.Optimizer("sgd", RATE, ()),
        schedule=ft.Schedule("cosine"),
    )
    gossip = Gossip(
        tuple(Member(f"worker-{k}") for k in range(WORKERS)),
        (plan,),
        Mixing("matchings", make("complete", WORKERS), seed),
        len(start),
        "choosing",
        ROUNDS,
        rule=rule,
        point=point,
    )

    def noised(work: Work) -> Array:
        own = np.random.default_rng([seed, work.client, work.round])
        batch = parts[work.client][own.random(RECORDS) < BATCH / RECORDS]
        noise = np.float32(sigma) * own.standard_normal(len(start), dtype=np.float32)
        return (summed(work.weights, inputs[batch], targets[batch]) + noise) / np.float32(BATCH)

    times = GraphTimes([1.0] * WORKERS, straggling=0.1, exchange=1 / exchanges, seed=seed)
    done = GraphSimulator(gossip, start, NoTraining(1, noised), times).run()
    scores = outputs(done.weights, inputs[50_000:])[-1]
    return 100 * float((scores.argmax(1) == targets[50_000:]).mean())


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, of all rows."""
    lines = ["| σ | rule | gradient at | exchanges | mean | each seed |", "| --- |" + " --- |" * 5]
    for row in rows:
        each = ", ".join(f"{one:.1f}" for one in row["accuracies"])
        lines.append(
            f"| {row['sigma']:g} | {row['rule']} | {row['point']} | {row['exchanges']} | "
            f"{fmean(row['accuracies']):.2f} | {each} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sigma", type=float, default=4.0)
    asked = parser.parse_args()
    train = load("fashion-mnist", folder=asked.data).train
    inputs = np.asarray(train.inputs, dtype=np.float32).reshape(len(train), -1)
    data = inputs, np.asarray(train.targets, dtype=np.int64)
    rows: list[dict[str, Any]] = []
    if ROWS.exists():
        rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    wanted: list[tuple[Rule, Any, int]] = [("allreduce", "average", 0)]
    wanted += [("asynchronous", point, n) for n in EXCHANGES for point in ("own", "average")]
    for rule, point, exchanges in wanted:
        names = {"sigma": asked.sigma, "rule": rule, "point": point, "exchanges": exchanges}
        if any(names.items() <= row.items() for row in rows):
            continue
        found = [accuracy(data, rule, asked.sigma, s, point, exchanges or 8) for s in SEEDS]
        rows.append({**names, "accuracies": found})
        with ROWS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    rows.sort(key=lambda row: (-row["sigma"], row["exchanges"], row["point"] != "own"))
    (HERE / "choosing.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()

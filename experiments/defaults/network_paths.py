"""What other paths give than the planner's, for networks on the sets that may be looked at.

    python experiments/defaults/network_paths.py --data ../shared/data --models mlp --epsilon 0.5 3
    python experiments/defaults/network_paths.py --data ../shared/data --models mlp --centred
    python experiments/defaults/network_paths.py --data ../shared/data --write

For every model, set and ε: batch, rounds and noise as planned, and mean accuracy in per cent over
seeds for paths that leave noise of several norms in the weights, in units of the one that was the
planner's. The constants of `forethought.planning.plan_request` are held against these tables;
held-out sets are refused. ``--centred`` takes the training inputs' own mean away, unpaid: what
centring could give. network_paths.csv keeps what was run, network_paths.md is written from it.
"""

from __future__ import annotations

import argparse
import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from network_sets import LOOKED_AT, task
from networks import EPSILONS, MODELS, Case

RESULTS = Path(__file__).with_name("network_paths.csv")
PATHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
HEAD = ["model", "data", "inputs", "epsilon", "unit", "seeds", *map(str, PATHS), "error"]
AS_THEY_ARE, CENTRED = "as they are", "centred"
# Times the planner's norm, for which the choice is shown.
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)


@dataclass(frozen=True)
class Paths:
    """Accuracies of one model on one set at one ε, a mean over seeds for each of PATHS.

    ``unit`` is the norm of noise that a path of 1 leaves in the weights, ``error`` the usual
    standard error of one accuracy.
    """

    model: str
    data: str
    inputs: str
    epsilon: float
    unit: float
    seeds: int
    accuracies: tuple[float, ...]
    error: float

    @property
    def best_norm(self) -> float:
        """The norm of noise of the best path."""
        return self.unit * PATHS[int(np.argmax(self.accuracies))]

    def at(self, norm: float) -> float:
        """Accuracy of a path that leaves noise of this norm, between two paths; ends are kept."""
        return float(np.interp(math.log(norm / self.unit), np.log(PATHS), self.accuracies))

    def behind(self, norm: float) -> float:
        """How far such a path is behind the best."""
        return max(self.accuracies) - self.at(norm)

    def line(self) -> list[str]:
        """As a line of the file."""
        numbers = [f"{value:.2f}" for value in (*self.accuracies, self.error)]
        who = [self.model, self.data, self.inputs, f"{self.epsilon:g}"]
        return [*who, f"{self.unit:g}", str(self.seeds), *numbers]


def measure(case: Case, epsilon: float, seeds: int, inputs: str) -> Paths:
    """One case."""
    if inputs == CENTRED:
        mean = case.task.inputs.mean(0)
        moved = (part - mean for part in (case.task.inputs, case.task.test_inputs))
        case = replace(case, task=replace(case.task, **dict(zip(_INPUTS, moved, strict=True))))
    plan = case.default(epsilon)
    steps = [path * plan.optimizer.learning_rate for path in PATHS]
    plans = [plan.with_(optimizer=replace(plan.optimizer, learning_rate=s)) for s in steps]
    found = torch.tensor([[case.accuracy(p, seed) for seed in range(seeds)] for p in plans])
    error = float(found.var(1).mean().sqrt()) / math.sqrt(seeds)
    means = tuple(found.mean(1).tolist())
    unit = case.noise_borne or math.nan
    return Paths(case.model, case.task.name, inputs, epsilon, unit, seeds, means, error)


_INPUTS = ("inputs", "test_inputs")


def norm_planned(model: str, name: str, folder: Path | None) -> float:
    """What the planner takes today."""
    return Case(model, *task(name, folder)).noise_borne or math.nan


def table(rows: list[Paths], planned: dict[tuple[str, str], float]) -> str:
    """The result as markdown.

    Args:
        planned: the planner's norm today for model and set.
    """
    parts = ["# Networks: other paths, on the sets that may be looked at\n"]
    for inputs in (AS_THEY_ARE, CENTRED):
        own = [row for row in rows if row.inputs == inputs]
        if not own:
            continue
        parts.append(f"## Inputs {inputs}\n\n{lines(own, planned)}\n")
        for model in dict.fromkeys(row.model for row in own):
            parts.append(choice([row for row in own if row.model == model], planned) + "\n")
    return "\n".join(parts)


def lines(rows: list[Paths], planned: dict[tuple[str, str], float]) -> str:
    """One line a case."""
    head = "| model | data | ε | unit | " + " | ".join(f"{path:g} ×" for path in PATHS)
    head += " | error | seeds | best norm | planner's | there | behind |\n"
    head += "| --- | --- " + "| ---: " * (len(PATHS) + 8) + "|\n"
    return head + "\n".join(
        f"| {r.model} | {r.data} | {r.epsilon:g} | {r.unit:g} | "
        + " | ".join(f"{value:.1f}" for value in r.accuracies)
        + f" | {r.error:.1f} | {r.seeds} | {r.best_norm:.0f} | {planned[r.model, r.data]:.0f} | "
        + f"{r.at(planned[r.model, r.data]):.1f} | {r.behind(planned[r.model, r.data]):.1f} |"
        for r in rows
    )


def choice(rows: list[Paths], planned: dict[tuple[str, str], float]) -> str:
    """In one paragraph, how far behind its best the worst case is for other norms."""
    shown = []
    for factor in FACTORS:
        worst = max(rows, key=lambda r: r.behind(factor * planned[r.model, r.data]))
        behind = worst.behind(factor * planned[worst.model, worst.data])
        shown.append(f"{factor:g} ×: {behind:.1f} ({worst.data}, ε = {worst.epsilon:g})")
    return (
        f"{rows[0].model}, times the planner's norm, the worst case behind the best of its line, "
        "between two paths by interpolation: " + "; ".join(shown) + "."
    )


def saved() -> list[Paths]:
    """What network_paths.csv holds."""
    if not RESULTS.is_file():
        return []
    with RESULTS.open(encoding="utf-8", newline="") as file:
        found = list(csv.reader(file))[1:]
    return [
        Paths(
            *(model, data, inputs, float(epsilon), float(unit), int(seeds)),
            tuple(map(float, rest[:-1])),
            float(rest[-1]),
        )
        for model, data, inputs, epsilon, unit, seeds, *rest in found
    ]


def keep(new: Paths) -> None:
    """Write all cases with this one."""
    order = {name: k for names in LOOKED_AT.values() for k, name in enumerate(names)}
    rows = sorted(
        [*saved(), new],
        key=lambda r: (r.inputs, MODELS.index(r.model), order[r.data], r.epsilon),
    )
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *(row.line() for row in rows)])


def main() -> None:
    """Run what the command line asks for and what is not there yet; write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--only", nargs="+", help="data sets; by default all that may be looked at")
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--centred", action="store_true", help="around the inputs' own mean")
    parser.add_argument("--write", action="store_true", help="run nothing, write the table")
    parser.add_argument("--estimate", action="store_true", help="say how long; run nothing else")
    args = parser.parse_args()
    torch.set_num_threads(1)
    inputs = CENTRED if args.centred else AS_THEY_ARE
    hours = 0.0
    known = {(row.model, row.data, row.inputs, row.epsilon) for row in saved()}
    for model in [] if args.write else args.models:
        for name in LOOKED_AT[model]:
            for epsilon in args.epsilon:
                key = (model, name, inputs, epsilon)
                if name not in (args.only or (name,)):
                    continue
                if args.estimate:
                    case = Case(model, *task(name, args.data))
                    runs = len(PATHS) * args.seeds
                    hours += runs * case.seconds(case.default(epsilon)) / 3600
                elif key not in known:
                    case = Case(model, *task(name, args.data))
                    found = measure(case, epsilon, args.seeds, inputs)
                    print(*found.line(), flush=True)
                    keep(found)
    if args.estimate:
        print(f"all cases, done or not: {hours:.2f} h of one core in all")
        return
    rows = saved()
    planned = {key: norm_planned(*key, args.data) for key in {(r.model, r.data) for r in rows}}
    RESULTS.with_suffix(".md").write_text(table(rows, planned), encoding="utf-8")


if __name__ == "__main__":
    main()

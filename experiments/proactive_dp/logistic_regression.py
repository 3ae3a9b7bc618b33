"""Logistic regression of van Dijk et al., "Proactive DP": Figures 1(b, c), 2(b, c), 7, 8, 11, 12.

    python experiments/proactive_dp/logistic_regression.py --data DIR               # a minute
    python experiments/proactive_dp/logistic_regression.py --data DIR --full        # minutes
    python experiments/proactive_dp/logistic_regression.py --data DIR --full --set a9a
    python experiments/proactive_dp/logistic_regression.py --data DIR --full --one-by-one

All runs of one sample size are trained in step (side_by_side.py), from the batches and noise of the
library's trainer, which ``--one-by-one`` uses for each run by itself; finished runs are kept.

Phishing data of the LIBSVM collection: N = 10,000 records to train on, the other 1,055 to test on.
The paper shows two sets and names neither; the second one here is a9a, of which the first 10,000
training records are taken, drawn by a fixed seed, and the whole test part.
Strongly convex (equation (9), λ = 1/N, step size η₀/(1 + βt)) and plain convex (equation (66),
η₀/(1 + β√t)); K, C, η₀, β, s, ε and δ of Tables 2, 3 and 6. The step size is η₀ times the *sum* of
a holder's clipped gradients. t counts gradients, as Table 2 says, in the plain convex problem; the
strongly convex one is run both ways, with t in rounds and with t in one holder's gradients. Counted
in gradients the steps shrink so fast that one holder's model never leaves the majority class; five
holders, whose updates are summed, reach the paper's accuracies either way.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import side_by_side
import torch
from clients import COPIES, ONE, SHARES
from comparison import Preset, Problem, add_options, estimate, preset, report, run
from torch.nn import functional as F

import forethought as ft
from forethought.data import load
from forethought.models import build

EXAMPLES = 10_000
Arrays = tuple[np.ndarray, np.ndarray]
TABLE_6 = (
    (0.04945, 19.29962, 26),
    (0.1, 13.06742, 55),
    (0.25, 8.59143, 103),
    (0.5, 6.05868, 168),
    (1.0, 4.27273, 265),
    (2.0, 3.03241, 400),
)


def logistic(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Equation (66): the log-odds of class 1 against labels 0 and 1, one value per example."""
    return F.binary_cross_entropy_with_logits(outputs[:, 0], targets.float(), reduction="none")


def phishing(folder: Path | None) -> tuple[Arrays, Arrays]:
    """10,000 records to train on and the rest."""
    # The file as its own test part: all records in order. A public set may be cut by number, into
    # exactly the N that the paper trains on and the rest.
    whole = load("svmlight:libsvm/phishing.gz", folder=folder, test="libsvm/phishing.gz").train
    order = np.random.default_rng(20_240_229).permutation(len(whole))
    held, rows = np.sort(order[:-EXAMPLES]), np.sort(order[-EXAMPLES:])
    inputs, targets = whole.inputs, whole.targets
    return (inputs[rows], targets[rows]), (inputs[held], targets[held])


def a9a(folder: Path | None) -> tuple[Arrays, Arrays]:
    """10,000 records of the training part, and the test part."""
    data = load("svmlight:libsvm/a9a.gz", folder=folder, test="libsvm/a9a.t.gz")
    if data.test is None:
        raise SystemExit("a9a's test part is missing")
    rows = np.sort(np.random.default_rng(20_240_229).permutation(len(data.train))[:EXAMPLES])
    train, test = data.train, data.test
    return (train.inputs[rows], train.targets[rows]), (test.inputs, test.targets)


SETS = {"phishing": phishing, "a9a": a9a}


def problems(name: str, folder: Path | None) -> list[Problem]:
    """The strongly and the plain convex problem of a data set."""
    training, testing = SETS[name](folder)
    inputs, targets = torch.from_numpy(testing[0]), torch.from_numpy(testing[1]).bool()
    of_set = "" if name == "phishing" else f", {name}"

    def score(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(((model(inputs)[:, 0] > 0) == targets).double().mean())

    def problem(
        called: str,
        schedule: ft.Schedule,
        options: tuple[tuple[str, float], ...],
        printed: dict[float | None, float],
    ) -> Problem:
        return Problem(
            name=called + of_set,
            model=build("linear", inputs=training[0].shape[1:], classes=2, outputs=1),
            data=training,
            loss=logistic,
            score=score,
            delta=1e-4,
            gradients=50_000,
            clip_norm=0.1,
            step_size=0.1,
            schedule=schedule,
            options=options,
            table=TABLE_6,
            printed=printed if name == "phishing" else {},
        )

    return [
        problem(
            "strongly convex",
            ft.Schedule("inverse", decay=0.001, unit="rounds"),
            (("weight_decay", 1 / EXAMPLES),),
            {0.04945: 86, 0.1: 91, None: 93},
        ),
        problem(
            "strongly convex, t in gradients",
            ft.Schedule("inverse", decay=0.001, unit="examples"),
            (("weight_decay", 1 / EXAMPLES),),
            {0.04945: 86, 0.1: 91, None: 93},
        ),
        problem("plain convex", ft.Schedule("inverse-sqrt", decay=0.01, unit="examples"), (), {}),
    ]


SMALL = Preset(2, (0.04945, 0.25, 2.0), (10, 26), (COPIES, SHARES, ONE))
FULL = Preset(10, [row[0] for row in TABLE_6], (1, 5, 10, 15, 20, 26), (COPIES, SHARES, ONE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--set", choices=SETS, default="phishing")
    parser.add_argument("--problems", nargs="+", help="names, such as 'plain convex'; all of them")
    parser.add_argument(
        "--one-by-one",
        action="store_true",
        help="each by the trainer; where kept, give another --out",
    )
    parser.add_argument("--out", type=Path, help="runs/proactive_dp/logistic_regression_SET")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = problems(arguments.set, arguments.data)
    if arguments.problems:
        known = {problem.name.removesuffix(f", {arguments.set}"): problem for problem in chosen}
        if unknown := set(arguments.problems) - known.keys():
            parser.error(f"--problems {sorted(unknown)}: there are {', '.join(known)}")
        chosen = [known[name] for name in arguments.problems]
    asked = preset(arguments, SMALL, FULL)
    if arguments.estimate:
        (estimate if arguments.one_by_one else side_by_side.estimate)(chosen, asked)
        return
    out = arguments.out or Path(f"runs/proactive_dp/logistic_regression_{arguments.set}")
    if arguments.one_by_one:
        rows = [row for problem in chosen for row in run(problem, asked, out)]
    else:
        rows = side_by_side.run(chosen, asked, out)
    report(out, chosen, rows)


if __name__ == "__main__":
    main()

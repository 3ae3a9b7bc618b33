"""Logistic regression of van Dijk et al., "Proactive DP": Figures 1(b, c), 2(b, c), 7 and 11.

    python experiments/proactive_dp/logistic_regression.py --data ../shared/data         # 3 minutes
    python experiments/proactive_dp/logistic_regression.py --data ../shared/data --full  # hours

Phishing data of the LIBSVM collection: N = 10,000 records to train on, the other 1,055 to test on.
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
import torch
from clients import COPIES, ONE, SHARES
from comparison import Preset, Problem, add_options, preset, report, run
from torch.nn import functional as F

import forethought as ft
from forethought.data import load
from forethought.models import build

EXAMPLES = 10_000
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


def problems(folder: Path | None) -> list[Problem]:
    """The strongly and the plain convex problem."""
    # The file as its own test part: all records in order. A public set may be cut by number, into
    # exactly the N that the paper trains on and the rest.
    whole = load("svmlight:libsvm/phishing.gz", folder=folder, test="libsvm/phishing.gz").train
    order = np.random.default_rng(20_240_229).permutation(len(whole))
    held, rows = np.sort(order[:-EXAMPLES]), np.sort(order[-EXAMPLES:])
    everything, labels = whole.inputs, whole.targets
    inputs = torch.from_numpy(everything[held])
    targets = torch.from_numpy(labels[held]).bool()

    def score(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(((model(inputs)[:, 0] > 0) == targets).double().mean())

    def problem(
        name: str,
        schedule: ft.Schedule,
        options: tuple[tuple[str, float], ...],
        printed: dict[float | None, float],
    ) -> Problem:
        return Problem(
            name=name,
            model=build("linear", inputs=everything.shape[1:], classes=2, outputs=1),
            data=(everything[rows], labels[rows]),
            loss=logistic,
            score=score,
            delta=1e-4,
            gradients=50_000,
            clip_norm=0.1,
            step_size=0.1,
            schedule=schedule,
            options=options,
            table=TABLE_6,
            printed=printed,
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
    parser.add_argument("--out", type=Path, default=Path("runs/proactive_dp/logistic_regression"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = problems(arguments.data)
    asked = preset(arguments, SMALL, FULL)
    report(arguments.out, chosen, [row for problem in chosen for row in run(problem, asked)])


if __name__ == "__main__":
    main()

"""AlexNet on CIFAR-10 of van Dijk et al., "Proactive DP": Figures 10 and 14.

    python experiments/proactive_dp/alexnet.py --data ../shared/data         # minutes, resumes
    python experiments/proactive_dp/alexnet.py --data ../shared/data --full  # weeks of one core
    python experiments/proactive_dp/alexnet.py --data ../shared/data --full --estimate

C, η₀, β, s, ε and δ of Tables 2, 5 and 8. The small preset computes K = 1,378 gradients, two
rounds, with five disjoint shares: it shows that the preset runs, no more. The network is this
library's AlexNet for 32 × 32 images with group normalisation; the paper links another.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from clients import COPIES, ONE, SHARES
from comparison import Preset, Problem, add_options, estimate, preset, report, run

import forethought as ft
from forethought.data import load
from forethought.models import build
from forethought.rounds.losses import cross_entropy

TABLE_8 = (
    (0.25, 9.29838, 417),
    (0.5, 6.57192, 689),
    (0.75, 5.36937, 909),
    (1.0, 4.65014, 1099),
    (1.5, 4.16111, 1267),
    (2.0, 3.28831, 1690),
    (3.0, 2.68273, 1994),
)


def cifar10(folder: Path | None, gradients: int) -> Problem:
    """The non-convex problem with K = ``gradients``."""
    data = load("cifar10", folder=folder)
    if data.test is None:
        raise SystemExit("CIFAR-10's test part is missing")
    inputs, targets = torch.from_numpy(data.test.inputs), torch.from_numpy(data.test.targets)

    def score(model: torch.nn.Module) -> float:
        with torch.no_grad():
            outputs = torch.cat([model(piece) for piece in inputs.split(500)])
        return float((outputs.argmax(1) == targets).double().mean())

    return Problem(
        name="AlexNet on CIFAR-10",
        model=build("alexnet", inputs=(3, 32, 32), classes=10, seed=0),
        data=(data.train.inputs, data.train.targets),
        loss=cross_entropy,
        score=score,
        delta=2e-5,
        gradients=gradients,
        clip_norm=0.025,
        step_size=0.1,
        schedule=ft.Schedule("inverse-sqrt", decay=0.01, unit="examples"),
        options=(),
        table=TABLE_8,
        printed={},
    )


SMALL = Preset(1, (0.5,), (), (SHARES,))
FULL = Preset(
    3,
    [row[0] for row in TABLE_8],
    (10, 25, 50, 100, 300, 500, 689),
    (COPIES, SHARES, ONE),
)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--gradients", type=int, help="K; the paper's is 350,000")
    parser.add_argument("--out", type=Path, default=Path("runs/proactive_dp/alexnet"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gradients = arguments.gradients or (350_000 if arguments.full else 1_378)
    problem = cifar10(arguments.data, gradients)
    asked = preset(arguments, SMALL, FULL)
    if arguments.estimate:
        estimate([problem], asked)
        return
    report(arguments.out, [problem], run(problem, asked, arguments.out))


if __name__ == "__main__":
    main()

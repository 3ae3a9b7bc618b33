"""LeNet-5 on MNIST of van Dijk et al., "Proactive DP": Figures 3(b, c), 9 and 13.

    python experiments/proactive_dp/lenet.py --data ../shared/data         # 1 minute
    python experiments/proactive_dp/lenet.py --data ../shared/data --full  # days, resumes
    python experiments/proactive_dp/lenet.py --data ../shared/data --full --estimate

C, η₀, β, s, ε and δ of Tables 2, 4 and 7. The small preset computes K = 36,000 gradients, a tenth
of the paper's, once with five disjoint shares; the formula's σ is the same for every K, so it is
further off there. --full takes the paper's K, three seeds, and also five holders of 60,000 records.
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

TABLE_7 = (
    (0.15007, 12.10881, 370),
    (0.2, 10.48452, 460),
    (0.25, 9.37379, 543),
    (0.5, 6.63120, 889),
    (0.75, 5.41887, 1168),
    (1.0, 4.69244, 1409),
    (2.0, 3.31648, 2159),
)


def mnist(folder: Path | None, gradients: int) -> Problem:
    """The non-convex problem with K = ``gradients``."""
    data = load("mnist", folder=folder)
    if data.test is None:
        raise SystemExit("MNIST's test part is missing")
    inputs, targets = torch.from_numpy(data.test.inputs), torch.from_numpy(data.test.targets)

    def score(model: torch.nn.Module) -> float:
        with torch.no_grad():
            outputs = torch.cat([model(piece) for piece in inputs.split(1000)])
        return float((outputs.argmax(1) == targets).double().mean())

    return Problem(
        name="LeNet-5 on MNIST",
        model=build("lenet5", inputs=(1, 28, 28), classes=10, seed=0),
        data=(data.train.inputs, data.train.targets),
        loss=cross_entropy,
        score=score,
        delta=1.667e-5,
        gradients=gradients,
        clip_norm=0.025,
        step_size=0.1,
        schedule=ft.Schedule("inverse-sqrt", decay=0.01, unit="examples"),
        options=(),
        table=TABLE_7,
        printed={0.15007: 93, None: 98},
    )


SMALL = Preset(1, (0.15007, 1.0), (100, 370), (SHARES,))
FULL = Preset(
    3,
    [row[0] for row in TABLE_7],
    (10, 25, 50, 100, 200, 300, 370),
    (COPIES, SHARES, ONE),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--gradients", type=int, help="K; the paper's is 360,000")
    parser.add_argument("--out", type=Path, default=Path("runs/proactive_dp/lenet"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gradients = arguments.gradients or (360_000 if arguments.full else 36_000)
    problem = mnist(arguments.data, gradients)
    asked = preset(arguments, SMALL, FULL)
    if arguments.estimate:
        estimate([problem], asked)
        return
    report(arguments.out, [problem], run(problem, asked, arguments.out))


if __name__ == "__main__":
    main()

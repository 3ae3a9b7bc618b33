"""Utility graphs of van Dijk et al., "Proactive DP": Figures 1(a), 2(a), 3(a), 4, 5 and 6.

    python experiments/proactive_dp/utility_graph.py --data ../shared/data
    python experiments/proactive_dp/utility_graph.py --data ../shared/data --full  # resumes
    python experiments/proactive_dp/utility_graph.py --data ../shared/data --only lenet5-mnist \\
        --noise-scale holders-round    # √5 η₀ C σ on the weights in place of C σ

trains logistic regression, strongly convex (λ = 1/N) and plain convex, on the phishing data with
N = 10,000, and on a9a (the second set of Figure 5), LeNet-5 on MNIST and, when asked for by name,
AlexNet on CIFAR-10, each with clipping and without noise; perturbs the weights by N(0, C²σ²I);
draws the graphs; and prints the largest σ that keeps 90 % of the accuracy at the paper's clip norm
beside the σ that the paper reads off its own graphs.

The paper adds η times the *sum* of clipped gradients, this library takes the mean: its step size is
η times the sample size. η is 0.1 as in the paper. LeNet-5 runs with the schedule of Table 1 and
s = 370 of Table 4, for one pass (--full: six, the paper's K). The paper says "LIBSVM" for the
convex data and no more. On phishing, whose rows have norm 1, its decaying steps end long before the
"near optimal" model that it asks for; there η stays 0.1, with s = 100 and K = 100,000 (--full:
500,000) instead of 50,000.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from blake3 import blake3
from rich.progress import Progress, TaskID
from torch.nn import functional as F

from forethought.data import load
from forethought.models import build
from forethought.report.figures import draw_utility
from forethought.utility.graph import UtilityGraph
from forethought.utility.perturbing import NoiseScaleName, utility_graph
from forethought.values.use import Optimizer, Schedule

# Published networks are there.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

TOLERANCE = 0.1
# Rows of the table, with --full and nothing else.
KEPT = Path(__file__).with_name("utility_graph.md")
# Test images of an estimate.
FEW = 100
CONVEX_EXAMPLES, CONVEX_NORM = 10_000, 0.1
CONVEX_NORMS = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
NETWORK_NORMS = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.035, 0.05, 0.075, 0.1)


Progressing = Callable[[int, int], None]
Make = Callable[[Path, "Asked", Progressing], UtilityGraph]


@dataclass(frozen=True)
class Asked:
    """How much of a graph is drawn.

    Args:
        full: the paper's length of training. scale: how much noise reaches the weights.
        clip_norms: of the graph.
        draws, images: None: what the problem has; images are of networks alone.
        part: of the training, one in so many rounds; for an estimate.
    """

    full: bool
    scale: NoiseScaleName
    clip_norms: tuple[float, ...]
    draws: int | None = None
    images: int | None = None
    part: int = 1


@dataclass(frozen=True)
class Setting:
    """One of the paper's problems.

    Args:
        clip_norm, noise_multiplier: the pair that the paper reads off its graph at a 10 % loss.
        figures: the paper's figures.
    """

    figures: str
    clip_norm: float
    noise_multiplier: float
    make: Make

    @property
    def norms(self) -> tuple[float, ...]:
        """Clip norms of the whole graph."""
        return CONVEX_NORMS if self.clip_norm == CONVEX_NORM else NETWORK_NORMS

    def draws(self, full: bool) -> int:
        """Draws of noise for each pair."""
        return 100 if full and self.clip_norm == CONVEX_NORM else 20


def logistic(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Equation (66): the log-odds of class 1 against labels 0 and 1, one value per example."""
    return F.binary_cross_entropy_with_logits(outputs[:, 0], targets.float(), reduction="none")


def right(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Share of labels on the right side of 0."""
    return float(((outputs[:, 0] > 0) == targets.bool()).double().mean())


def scaled(name: NoiseScaleName) -> dict[str, Any]:
    """The noise scale with the paper's five holders."""
    return {"noise_scale": name, "holders": 5 if name == "holders-round" else 1}


def convex(strongly: bool, name: str = "phishing") -> Make:
    """Logistic regression; strongly convex with the regulariser (9), outside the clipping."""

    def make(folder: Path, asked: Asked, progress: Progressing) -> UtilityGraph:
        if name == "phishing":
            data = load("svmlight:libsvm/phishing.gz", folder=folder, holdout=0.0954)
        else:
            data = load("svmlight:libsvm/a9a.gz", folder=folder, test="libsvm/a9a.t.gz")
        assert data.test is not None
        inputs, targets = data.train.inputs[:CONVEX_EXAMPLES], data.train.targets[:CONVEX_EXAMPLES]
        batch, gradients = 100, 500_000 if asked.full else 100_000
        options = {"weight_decay": 1 / CONVEX_EXAMPLES} if strongly else {}
        return utility_graph(
            build("linear", inputs=inputs.shape[1:], classes=2, outputs=1),
            (inputs, targets),
            test=(data.test.inputs, data.test.targets),
            source="public",
            clip_norms=asked.clip_norms,
            noise_multipliers=tuple(range(1, 31)),
            draws=asked.draws or (100 if asked.full else 20),
            loss=logistic,
            score=right,
            batch=batch,
            rounds=max(1, round(gradients / batch / asked.part)),
            optimizer=Optimizer("sgd", 0.1 * batch, tuple(options.items())),
            test_examples=None,
            progress=progress,
            **scaled(asked.scale),
        )

    return make


def network(
    model: str, name: str, batch: int, gradients: tuple[int, int], schedule: Schedule | None
) -> Make:
    """A network on images; K of the small preset and of the paper."""

    def make(folder: Path, asked: Asked, progress: Progressing) -> UtilityGraph:
        data = load(name, folder=folder)
        assert data.test is not None
        shape = data.train.inputs.shape[1:]
        return utility_graph(
            build(model, inputs=shape, classes=10, seed=0),
            (data.train.inputs, data.train.targets),
            test=(data.test.inputs, data.test.targets),
            source="public",
            clip_norms=asked.clip_norms,
            noise_multipliers=tuple(np.geomspace(0.1, 30, 30)),
            draws=asked.draws or 20,
            batch=batch,
            rounds=max(1, round(gradients[asked.full] / batch / asked.part)),
            optimizer=Optimizer("sgd", 0.1 * batch, ()),
            schedule=schedule,
            test_examples=asked.images or 2000,
            progress=progress,
            **scaled(asked.scale),
        )

    return make


DECAYING = Schedule("inverse-sqrt", decay=0.01, unit="examples")
SETTINGS = {
    "strongly-convex": Setting("1(a), 4(a)", CONVEX_NORM, 20.0, convex(strongly=True)),
    "plain-convex": Setting("2(a), 4(b)", CONVEX_NORM, 20.0, convex(strongly=False)),
    "strongly-convex-a9a": Setting("5(a)", CONVEX_NORM, 20.0, convex(strongly=True, name="a9a")),
    "plain-convex-a9a": Setting("5(b)", CONVEX_NORM, 20.0, convex(strongly=False, name="a9a")),
    "lenet5-mnist": Setting(
        "3(a), 6(a)", 0.025, 12.0, network("lenet5", "mnist", 370, (60_000, 360_000), DECAYING)
    ),
    "alexnet-cifar10": Setting(
        "6(b)", 0.025, 6.572, network("alexnet", "cifar10", 689, (6_890, 350_000), DECAYING)
    ),
}
HEAD = (
    "| problem | figures | C | F(w) | paper's σ | largest σ at a 10 % loss | F(w+n)/F(w) at "
    "the paper's σ | chosen C, σ | CPU s |\n|---|---|---|---|---|---|---|---|---|"
)
# Hours: run when asked for by name, or with --full.
SLOW = ("alexnet-cifar10",)


def estimate(setting: Setting, folder: Path, full: bool) -> float:
    """Hours of one core that a graph would take, by parts of one clip norm's training and two draws
    that are run; what is the same in all of them, such as the reading of data, is taken off."""

    def seconds(part: int, draws: int = 3) -> tuple[float, float]:
        """Until the model was trained and measured, and for a draw."""
        asked = Asked(full, "weights", (setting.clip_norm,), draws, FEW, part)
        times = [time.process_time()]
        found.append(setting.make(folder, asked, lambda *_: times.append(time.process_time())))
        return times[1] - times[0], (times[-1] - times[1]) / draws

    found: list[UtilityGraph] = []
    seconds(200, 1)  # loads libraries
    (least, draw), (more, _) = seconds(200), seconds(100, 1)
    training = 200 * (more - least)
    if more - least < 5:  # too little to be told from what else goes on
        training = 20 / 0.9 * (seconds(20, 1)[0] - least)
    images = 2000 / FEW if found[0].test_examples == FEW else 1
    return len(setting.norms) * (training + setting.draws(full) * images * draw) / 3600


def in_pieces(
    setting: Setting, data: Path, asked: Asked, folder: Path, progress: Progressing
) -> tuple[UtilityGraph, float]:
    """A graph, and its processor seconds: clip norm by clip norm, those in ``folder`` not again.

    Every norm's model begins at the same weights, and has the same batches and draws.
    """
    pieces, cpu = [], 0.0
    for index, norm in enumerate(asked.clip_norms):
        own = replace(asked, clip_norms=(norm,))
        kept = folder / f"{blake3(repr(own).encode()).hexdigest()[:16]}.json"
        if kept.exists():
            values = json.loads(kept.read_text(encoding="utf-8"))
        else:
            start = time.process_time()
            before = partial(_after, progress, index, len(asked.clip_norms))
            graph = setting.make(data, own, before)
            values = {"seconds": time.process_time() - start, "graph": graph.to_dict()}
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(values), encoding="utf-8")
        pieces.append(UtilityGraph.from_dict(values["graph"]))
        cpu += values["seconds"]
    return (
        replace(
            pieces[0],
            clip_norms=asked.clip_norms,
            noiseless=np.concatenate([piece.noiseless for piece in pieces]),
            accuracy=np.concatenate([piece.accuracy for piece in pieces]),
        ),
        cpu,
    )


def _after(progress: Progressing, pieces: int, of: int, done: int, total: int) -> None:
    progress(pieces * total + done, of * total)


def report(name: str, setting: Setting, graph: UtilityGraph, cpu: float) -> str:
    """A row of the table, in Markdown."""
    row = graph.clip_norms.index(setting.clip_norm)
    kept = np.interp(setting.noise_multiplier, graph.noise_multipliers, graph.mean[row])
    enough = graph.mean[row] >= 1 - TOLERANCE
    count = len(enough) if enough.all() else int(enough.argmin())
    largest = f"{graph.noise_multipliers[count - 1]:.3g}" if count else "none"
    choice = graph.choose(TOLERANCE)
    return (
        f"| {name} | {setting.figures} | {setting.clip_norm:g} | {graph.noiseless[row]:.1%} | "
        f"{setting.noise_multiplier:g} | {largest} | {kept:.1%} | {choice.clip_norm:g}, "
        f"{choice.noise_multiplier:.3g} | {cpu:.0f} |"
    )


def keep(rows: Sequence[str]) -> None:
    """Put rows of the table in place of their problems' earlier ones."""
    old = KEPT.read_text(encoding="utf-8").splitlines()[2:] if KEPT.exists() else []
    of_problem = {row.split(" | ")[0]: row for row in (*old, *rows)}
    KEPT.write_text("\n".join((HEAD, *of_problem.values())) + "\n", encoding="utf-8")


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/utility_graph"))
    parser.add_argument("--only", choices=SETTINGS, help="one of the problems")
    parser.add_argument("--full", action="store_true", help="the paper's length of training")
    parser.add_argument("--estimate", action="store_true", help="say how long; run nothing else")
    parser.add_argument("--clip-norms", type=float, nargs="+", help="the paper's must be one")
    parser.add_argument("--draws", type=int, help="of noise, for each pair")
    parser.add_argument("--images", type=int, help="test images, of the networks")
    parser.add_argument("--noise-scale", choices=get_args(NoiseScaleName), default="weights")
    arguments = parser.parse_args()
    rows = []
    norms = tuple(sorted(arguments.clip_norms)) if arguments.clip_norms else None
    names = [name for name in SETTINGS if arguments.full or name not in SLOW]
    names = [arguments.only] if arguments.only else names
    if arguments.estimate:
        torch.set_num_threads(1)
        hours = sum(estimate(SETTINGS[name], arguments.data, arguments.full) for name in names)
        print(f"{hours:.2f} h of one core in all")
        return
    for name in names:
        setting = SETTINGS[name]
        if norms and setting.clip_norm not in norms:
            parser.error(f"--clip-norms of {name} must have the paper's, {setting.clip_norm:g}")
        asked = Asked(
            arguments.full,
            arguments.noise_scale,
            norms or setting.norms,
            arguments.draws,
            arguments.images,
        )
        pieces = arguments.out / "pieces" / name
        with Progress() as bar:
            show = partial(_show, bar, bar.add_task(name))
            graph, cpu = in_pieces(setting, arguments.data, asked, pieces, show)
        rows.append(report(name, setting, graph, cpu))
        folder = arguments.out / name
        for path in draw_utility(graph, folder, TOLERANCE):
            print(f"figure  {path}")
        graph.save(folder / "graph.json")
    print(HEAD, *rows, sep="\n")
    changed = norms or arguments.draws or arguments.images or arguments.noise_scale != "weights"
    if arguments.full and not changed:
        keep(rows)
    print(f"Noise on the weights: {graph.noise_meaning}.")


if __name__ == "__main__":
    main()

"""Where the planner's recipe and settings made for image features part, one choice at a time.

    python experiments/patches/choices.py --data DIR                # choices.csv, choices.md
    python experiments/patches/choices.py --data DIR --only cifar10:patches

Training images only: the first 20,000 to train on, the last 10,000 to measure on, and noise and
batches as for all 50,000 or 60,000. Each *way* differs from settings by hand (full batch, 30
rounds, momentum 0.8, no intercept, not centred) or from the recipe as it was in what its name says;
every ε is tried with paths that leave noise of four deviations in a score, and both the last
weights and their exponential average (0.95) are measured. Finished rows are kept and not run again;
``--smoke`` runs a few hundred images and keeps nothing. A way takes half a minute to some of one
core, beside the features, and 3 GB.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from kept_rows import keep, kept
from torch import Tensor

import forethought as ft
from forethought.data import load
from forethought.data.features import EXTRACTORS, cached
from forethought.planning import defaults

FOLDER = Path(__file__).parent
KEPT, TABLE = FOLDER / "choices.csv", FOLDER / "choices.md"
FIELDS = ("set", "features", "way", "epsilon", "spread", "weights", "accuracy")
CELLS = (
    "cifar10:patches",
    "cifar10:deep-patches",
    "fashion-mnist:scattering",
    "mnist:scattering",
    "fashion-mnist:patches",
    "fashion-mnist:deep-patches",
    "mnist:patches",
)
TRAIN, MEASURE, PIECE = 20_000, 10_000, 10_000
EPSILONS, DELTA = (0.5, 1.0, 3.0, 8.0), 1e-5
SPREADS = (0.35, 0.65, 1.0, 1.5)
CLASSES, DECAY = 10, 0.95
_PART = 1000  # records at a time


@dataclass(frozen=True)
class Way:
    """How a linear model is trained.

    Args:
        full: every record in every round; else Poisson batches.
        passes: over the data in the whole run, which sets the batches' size; None: as planned
            before image features had rules of their own.
        intercept: in units of a record's usual norm; 0 for none.
        centred: the features' means are released first, and paid for.
        clip: in units of a record's usual norm, the intercept among it.
        unit: each record is scaled to norm 1 by itself.
    """

    full: bool = True
    rounds: int = 30
    momentum: float = 0.8
    intercept: float = 0.0
    centred: bool = False
    clip: float = 0.25
    unit: bool = True
    passes: float | None = None

    @property
    def together(self) -> bool:
        """Whether the batches are the same at every ε."""
        return self.full or self.passes is not None


WAYS = {
    "by hand": Way(),
    "recipe": Way(False, 200, 0.9, 1 / 3, True, unit=False),
    "recipe, 30 passes": Way(False, 200, 0.9, 1 / 3, True, unit=False, passes=30.0),
    "recipe, 30 full batches, momentum 0.8": Way(True, 30, 0.8, 1 / 3, True, unit=False),
    "recipe, 30 full batches, momentum 0.9": Way(True, 30, 0.9, 1 / 3, True, unit=False),
    "recipe, 60 full batches, momentum 0.9": Way(True, 60, 0.9, 1 / 3, True, unit=False),
    "recipe, 30 batches, momentum 0.8": Way(False, 30, 0.8, 1 / 3, True, unit=False),
    "by hand, intercept 1": Way(intercept=1.0),
    "by hand, intercept 1/3": Way(intercept=1 / 3),
    "by hand, centred": Way(centred=True),
    "recipe, 200 full batches": Way(True, 200, 0.9, 1 / 3, True, unit=False),
}


def trained(
    inputs: Tensor,
    targets: Tensor,
    way: Way,
    epsilons: Sequence[float],
    examples: int,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Last and averaged weights, (features + 1, ε and spreads, classes), the intercept's last.

    Args:
        inputs: bfloat16, (N, features), of usual norm 1. epsilons: one where batches depend on it.
        examples: that noise and batches are for.
    """
    generator = torch.Generator().manual_seed(seed)
    N, size = inputs.shape
    usual = math.hypot(1.0, way.intercept)
    clip = way.clip * usual
    rate, deviations, steps = 1.0, [], []
    for epsilon in epsilons:
        taken, sigma = planned(way, epsilon, examples, size)
        deviation = sigma * clip / (taken * examples)
        each = (1 - way.momentum) / (deviation * usual * math.sqrt(way.rounds))
        deviations += [deviation] * len(SPREADS)
        steps += [spread * each for spread in SPREADS]
        rate = min(1.0, taken * examples / N)  # batches of the size that they would have
    scale, step = torch.tensor(deviations)[:, None], torch.tensor(steps)[:, None]
    shape = (size + 1, len(steps), CLASSES)
    weights, speed, average = (torch.zeros(shape) for _ in range(3))
    lengths = torch.cat([part.float().norm(dim=1) for part in inputs.split(_PART)])
    lengths = (lengths.square() + way.intercept**2).sqrt()
    for done in range(way.rounds):
        chosen = None
        if rate < 1:
            chosen = (torch.rand(N, generator=generator) < rate).nonzero()[:, 0]
        now, total = weights.flatten(1).bfloat16(), torch.zeros(shape).flatten(1)
        for at in range(0, N if chosen is None else len(chosen), _PART):
            rows = slice(at, at + _PART) if chosen is None else chosen[at : at + _PART]
            part = inputs[rows]
            scores = (part @ now[:-1]).float() + way.intercept * weights.flatten(1)[-1]
            slopes = scores.view(-1, *shape[1:]).softmax(-1)
            slopes[torch.arange(len(part)), :, targets[rows]] -= 1
            norms = slopes.norm(dim=-1, keepdim=True) * lengths[rows, None, None]
            slopes *= (clip / norms.clamp_min(1e-12)).clamp_max(1)
            flat = slopes.flatten(1)
            total[:-1] += (part.T @ flat.bfloat16()).float()
            total[-1] += way.intercept * flat.sum(0)
        gradient = total.view(shape) / (rate * N)
        gradient += scale * torch.randn(size + 1, 1, CLASSES, generator=generator)
        if not way.intercept:
            gradient[-1] = 0
        speed.mul_(way.momentum).add_(gradient)
        weights -= step * speed
        average.lerp_(weights, 1 - min(DECAY, (2 + done) / (11 + done)))
    return weights, average


def planned(way: Way, epsilon: float, examples: int, features: int) -> tuple[float, float]:
    """Sampling rate and noise multiplier at the same certified ε."""
    budget = ft.Budget(epsilon, DELTA)
    known = {"features": features, "parameters": (features + 1) * CLASSES, "feature_norm": 1.0}
    known["image_features"] = way.together  # before, they had no rules of their own
    given: dict[str, object] = {"sampling": "full-batch"} if way.full else {}
    if way.passes is not None:
        given["batch"] = round(way.passes * examples / way.rounds)
    plan = ft.plan(
        examples=examples, budget=budget, rounds=way.rounds, centre=way.centred, **known, **given
    )
    return plan.batch / examples, plan.noise_multiplier


def centring(inputs: Tensor, examples: int, seed: int) -> Tensor:
    """Means with the noise that the planner pays for, (features,)."""
    size = inputs.shape[1]
    total = torch.zeros(size)
    for part in inputs.split(_PART):
        total += part.float().sum(0)
    generator = torch.Generator().manual_seed(1000 + seed)
    noise = torch.randn(size, generator=generator) * defaults.centring(True).error / math.sqrt(size)
    return total / len(inputs) + noise


def measured(weights: Tensor, inputs: Tensor, targets: Tensor, intercept: float) -> list[float]:
    """Percent right, by ε and spread."""
    right = torch.zeros(weights.shape[1])
    flat = weights.flatten(1)
    for at in range(0, len(inputs), _PART):
        part = inputs[at : at + _PART]
        scores = (part @ flat[:-1].bfloat16()).float() + intercept * flat[-1]
        scores = scores.view(-1, *weights.shape[1:])
        right += (scores.argmax(-1) == targets[at : at + _PART, None]).float().sum(0)
    return (100 * right / len(inputs)).tolist()


def features_of(images: object, features: str, unit: bool) -> Tensor:
    """(N, features) in bfloat16, of norm 1 each or usually."""
    found: Tensor | None = None
    extractor = EXTRACTORS[features]
    usual = extractor.usual_norm(extractor.shape(images.shape))
    for at in range(0, len(images), PIECE):  # bounds memory
        piece = torch.from_numpy(cached(images[at : at + PIECE], features)).flatten(1)
        if found is None:
            found = torch.empty(len(images), piece.shape[1], dtype=torch.bfloat16)
        found[at : at + PIECE] = piece / (piece.norm(dim=1, keepdim=True) if unit else usual)
    assert found is not None
    return found


def moved(inputs: Tensor, shift: Tensor) -> Tensor:
    """Less the shift, part by part."""
    found = torch.empty_like(inputs)
    for at in range(0, len(inputs), _PART):
        found[at : at + _PART] = inputs[at : at + _PART].float() - shift
    return found


def cell(name: str, features: str, folder: Path | None, smoke: bool, only: list[str]) -> None:
    """Every way on one set with one kind of features."""
    done = {(row["set"], row["features"], row["way"]) for row in kept(KEPT)}
    wanted = [way for way in only if smoke or (name, features, way) not in done]
    data = load(name, folder=folder).train
    count, measure = (300, 100) if smoke else (TRAIN, MEASURE)
    images, others = data.inputs[:count], data.inputs[-measure:]
    targets, labels = (
        torch.from_numpy(part) for part in (data.targets[:count], data.targets[-measure:])
    )
    for unit, centred in ((u, c) for u in (True, False) for c in (False, True)):
        ways = [w for w in wanted if (WAYS[w].unit, WAYS[w].centred) == (unit, centred)]
        if not ways:
            continue
        inputs, held_out = (features_of(part, features, unit) for part in (images, others))
        if centred:
            shift = centring(inputs, len(data.targets), 0)
            inputs, held_out = moved(inputs, shift), moved(held_out, shift)
        for way in ways:
            found = []
            start = time.process_time()
            for epsilons in [EPSILONS] if WAYS[way].together else [(e,) for e in EPSILONS]:
                both = trained(inputs, targets, WAYS[way], epsilons, len(data.targets))
                pairs = [(epsilon, spread) for epsilon in epsilons for spread in SPREADS]
                for kind, weights in zip(("last", "average"), both, strict=True):
                    right = measured(weights, held_out, labels, WAYS[way].intercept)
                    print(name, features, way, epsilons, kind, [f"{r:.2f}" for r in right])
                    found += [
                        (name, features, way, *pair, kind, f"{r:.2f}")
                        for pair, r in zip(pairs, right, strict=True)
                    ]
            print(f"{time.process_time() - start:.0f} s", flush=True)
            if not smoke:
                keep(KEPT, FIELDS, found)


def write_table() -> None:
    """choices.md from choices.csv."""
    text = ["Written by `python experiments/patches/choices.py`.\n"]
    text += [
        "Held-out training images, one seed, averaged weights (last ones in choices.csv), by ε"
    ]
    text += ["and by the deviation that the run's noise leaves in a score.\n"]
    shown = [(epsilon, spread) for epsilon in EPSILONS for spread in SPREADS[1:]]
    heads = [f"ε {epsilon:g}, {spread:g}" for epsilon, spread in shown]
    text += ["| set | features | way | " + " | ".join(heads) + " |"]
    text += ["| --- " * (len(heads) + 3) + "|"]
    found = {
        (r["set"], r["features"], r["way"], float(r["epsilon"]), float(r["spread"])): r["accuracy"]
        for r in kept(KEPT)
        if r["weights"] == "average"
    }
    for key in sorted(dict.fromkeys(key[:3] for key in found), key=place):
        cells = [found.get((*key, *one), "–") for one in shown]
        text.append("| " + " | ".join([*key, *cells]) + " |")
    TABLE.write_text("\n".join(text) + "\n", encoding="utf-8")


def place(key: tuple[str, ...]) -> tuple[int, int]:
    """Where a row stands."""
    return CELLS.index(f"{key[0]}:{key[1]}"), list(WAYS).index(key[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where mnist/, cifar10/, … are")
    parser.add_argument("--only", choices=CELLS, help="one set with one kind of features")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--smoke", action="store_true", help="300 images, nothing kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for wanted in CELLS:
        if arguments.only in (None, wanted):
            cell(*wanted.split(":"), arguments.data, arguments.smoke, arguments.ways)
    if not arguments.smoke:
        write_table()


if __name__ == "__main__":
    main()

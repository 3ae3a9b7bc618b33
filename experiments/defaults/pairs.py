"""Pairs of a public and a private data set, to calibrate a rehearsal's interval on and to test it.

Written down on 2026-11-22, before any of these pairs was run: the interval is calibrated on pairs
made of the families in :data:`CALIBRATED_ON` and measured on pairs made of those in
:data:`HELD_OUT`, with nothing changed in between; and κ = 0.005 and the score of
:mod:`forethought.utility.rehearsal`. No family is in both, and no pair mixes them.

Later that day, after pairs 0 to 36 of linear models and before any of a network: the held-out pairs
of the relations whose intervals are offered are run with a perceptron of 32 units as well, planned
by its model and shape. The intervals are those of the linear models; nothing is calibrated on it.

Those held 100 of the 120, so that the perceptron was then run on the pairs that are calibrated on
as well. Calibrated on these by the same rule they held 102. Since then an interval of a network is
never narrower than its run's own: decided on these pairs, in the direction that claims less.

A pair is drawn by its number alone: a family in turn, a part of its classes (images), the size N of
the private data, ε, and a public set that stands in the pair's *relation* to the private one:

- "same source": other records of the same population, drawn alike.
- "same task": the same columns and classes, of another group: records on the other side of a
  feature's median, or images that another device took (moved, darker, blurred or noisy).
- "same shape": as many features and classes, and another task: other classes of the same or another
  kind of image; another column as the label, or another table with its columns cut or padded.
- "synthetic": :func:`forethought.data.synthetic.like` of that shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch.nn import functional

from forethought.data import Dataset, load
from forethought.data.dataset import Split

CALIBRATED_ON = ("digits", "mnist", "a9a", "phishing", "breast-cancer")
HELD_OUT = ("fashion-mnist", "cifar10", "mushrooms", "german", "splice", "w8a", "svmguide1")
RELATIONS = ("same source", "same task", "same shape", "synthetic")
IMAGES = {"digits", "mnist", "fashion-mnist", "cifar10"}
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
MOST = 3_000  # records of a private set, so that a run takes a second

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Pair:
    """A private data set, cut into a training and a test part, and a public one beside it.

    Args:
        public: a pool of records; None where the relation is "synthetic".
    """

    name: str
    relation: str
    epsilon: float
    classes: int
    train: Arrays
    test: Arrays
    public: Dataset | None


def pair(relation: str, number: int, families: tuple[str, ...], folder: Path | None) -> Pair:
    """Pair ``number`` of a relation: the same each time."""
    place = RELATIONS.index(relation)
    random = np.random.default_rng([20_261_122, place, number, len(families)])
    family = families[number % len(families)]
    inputs, targets = records(family, folder)
    chosen: NDArray[np.int64] | None = None
    if family in IMAGES:
        count = int(random.choice([2, 3, 5]))
        chosen = random.permutation(int(targets.max()) + 1)
        inputs_, targets_ = of_classes((inputs, targets), chosen[:count])
    else:
        inputs_, targets_ = inputs, targets
    classes = int(targets_.max()) + 1
    order = random.permutation(len(targets_))
    inputs_, targets_ = inputs_[order], targets_[order]
    epsilon = float(random.choice(EPSILONS))
    words = f"{family}, {classes} classes" if chosen is not None else family
    public: Arrays | None
    if relation == "same task":
        (inputs_, targets_), public, how = groups(
            family, (inputs_, targets_), random, family in IMAGES
        )
        words += f", {how}"
    half = len(targets_) // 2 if relation == "same source" else len(targets_)
    size, tested, wanted = sizes(half, random)
    private = inputs_[: size + tested], targets_[: size + tested]
    if relation == "same source":
        public = inputs_[half:][:wanted], targets_[half:][:wanted]
    elif relation == "same shape":
        public, how = other_task(family, families, private, chosen, classes, random, folder)
        words += f", {how}"
    elif relation == "synthetic":
        public = None
    found = None
    if public is not None:
        public = public[0][:wanted], public[1][:wanted]
        found = Dataset("public", Split(*public), None, classes)
    return Pair(
        words,
        relation,
        epsilon,
        classes,
        (private[0][:size], private[1][:size]),
        (private[0][size:], private[1][size:]),
        found,
    )


def sizes(most: int, random: np.random.Generator) -> tuple[int, int, int]:
    """Of the private training and test part, of ``most`` records together, and of the public set.

    Public sets have about the private one's size, up to twice it.
    """
    size = int(np.exp(random.uniform(np.log(min(300, most // 2)), np.log(min(MOST, most * 4 / 5)))))
    tested = min(most - size, max(100, size // 4))
    return size, tested, int((size + tested) * random.uniform(1, 2))


@lru_cache
def records(family: str, folder: Path | None) -> Arrays:
    """All records of a family, flat; images as 8 × 8 grey pixels in [0, 1]."""
    if family == "cifar10":
        data = load("cifar10", folder=folder)
    elif family in ("digits", "mnist", "fashion-mnist", "breast-cancer"):
        data = load(family, folder=folder)
    else:
        name = {"german": "german.numer_scale"}.get(family, family)
        data = load(f"svmlight:libsvm/{name}.gz", folder=folder)
    parts = [data.train] if data.test is None else [data.train, data.test]
    inputs = np.concatenate([part.inputs for part in parts])
    targets = np.concatenate([part.targets for part in parts]).astype(np.int64)
    if family == "svmguide1":
        low, high = np.quantile(inputs, [0.01, 0.99], axis=0)  # no rehearsal is told of this
        inputs = np.clip(2 * (inputs - low) / (high - low) - 1, -1, 1)
    if family in ("mnist", "fashion-mnist"):
        middle = torch.from_numpy(inputs).view(-1, 1, 28, 28)[:, :, 2:26, 2:26]
        inputs = functional.avg_pool2d(middle, 3).flatten(1).numpy()
    elif family == "cifar10":
        grey = torch.from_numpy(inputs).view(-1, 3, 32, 32).mean(1, keepdim=True)
        inputs = functional.avg_pool2d(grey, 4).flatten(1).numpy()
    return np.asarray(inputs, np.float32).reshape(len(targets), -1), targets


def of_classes(data: Arrays, chosen: NDArray[np.int64]) -> Arrays:
    """The records of some classes, which are numbered anew."""
    inputs, targets = data
    new = np.full(int(targets.max()) + 1, -1)
    new[chosen] = np.arange(len(chosen))
    kept = new[targets] >= 0
    return inputs[kept], new[targets[kept]]


def groups(
    family: str, data: Arrays, random: np.random.Generator, images: bool, least: int = 20
) -> tuple[Arrays, Arrays, str]:
    """Private and public records of the same task and of different groups, and how they differ.

    Args:
        images: whether they are. least: records of each class in each group of a table.
    """
    inputs, targets = data
    half = len(targets) // 2
    if images:
        public, how = device(inputs[half:], random)
        return (inputs[:half], targets[:half]), (public, targets[half:]), how
    for feature in random.permutation(inputs.shape[1]):
        above = inputs[:, feature] > np.median(inputs[:, feature])
        if not 0.3 < above.mean() < 0.7:
            above = inputs[:, feature] != inputs[0, feature]
        classes = int(targets.max()) + 1
        sides = [np.bincount(targets[side], minlength=classes) for side in (above, ~above)]
        if 0.2 < above.mean() < 0.8 and min(side.min() for side in sides) >= least:
            side = above if random.random() < 0.5 else ~above
            how = f"other side of feature {feature}"
            return (inputs[side], targets[side]), (inputs[~side], targets[~side]), how
    raise ValueError(f"no feature cuts {family} into two groups with both classes in each")


def device(
    inputs: NDArray[np.float32], random: np.random.Generator
) -> tuple[NDArray[np.float32], str]:
    """Images as another device would have taken them."""
    side = math.isqrt(inputs.shape[1])
    images = inputs.reshape(-1, side, side)
    how = str(random.choice(["moved by a pixel", "darker", "blurred", "noisy"]))
    match how:
        case "moved by a pixel":
            images = np.roll(images, 1, axis=int(random.integers(1, 3)))
        case "darker":
            images = images * 0.6
        case "blurred":
            images = gaussian_filter(images, (0, 0.7, 0.7))
        case _:
            images = images + random.normal(0, 0.15, images.shape)
    return np.asarray(images, np.float32).reshape(inputs.shape), how


def other_task(
    family: str,
    families: tuple[str, ...],
    private: Arrays,
    chosen: NDArray[np.int64] | None,
    classes: int,
    random: np.random.Generator,
    folder: Path | None,
) -> tuple[Arrays, str]:
    """Public records of another task with as many features and classes, and what they are."""
    width = private[0].shape[1]
    if chosen is not None:
        other = str(random.choice([name for name in families if name in IMAGES]))
        data = records(other, folder)
        kinds = chosen[classes : 2 * classes] if other == family else random.permutation(10)
        inputs, targets = of_classes(data, kinds[:classes])
        how = f"other classes of {other}"
    else:
        other = str(random.choice([name for name in families if name not in IMAGES]))
        inputs, targets = records(other, folder)
        how = f"the table {other}"
        if other == family:
            inputs, targets, column = relabelled(inputs, random)
            how = f"column {column} as the label"
        missing = max(0, width - inputs.shape[1])
        inputs = np.pad(inputs[:, :width], ((0, 0), (0, missing)))
    order = random.permutation(len(targets))
    return (inputs[order], targets[order]), how


def relabelled(
    inputs: NDArray[np.float32], random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64], int]:
    """A column as the label, above its median or not, and zeros in its place."""
    for column in random.permutation(inputs.shape[1]):
        label = inputs[:, column] > np.median(inputs[:, column])
        if not 0.2 < label.mean() < 0.8:
            label = inputs[:, column] != inputs[0, column]
        if 0.2 < label.mean() < 0.8:
            changed = inputs.copy()
            changed[:, column] = 0
            return changed, label.astype(np.int64), int(column)
    raise ValueError("no column cuts the table into two classes")

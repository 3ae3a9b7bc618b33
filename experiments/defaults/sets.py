"""The data sets of these experiments: public constants only, as the loaders give them.

The split was written down on 2026-11-21, before anything of the second group was run with the rules
as they now are: constants may be looked at on LOOKED_AT only. A first version of the rules had
been tried on german, svmguide1, mushrooms and w8a by others; a table showed where it fell short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from forethought.data import load, synthetic
from forethought.data.dataset import Dataset, Split, split_off

LOOKED_AT = (
    "digits",
    "breast-cancer",
    "phishing",
    "a9a",
    "mnist",
    "fashion-mnist",
    "wine",
    "splice",
)
HELD_OUT = ("german", "svmguide1", "mushrooms", "w8a", "iris", "clusters-20", "clusters-200")
NAMES = LOOKED_AT + HELD_OUT
# Norms as their owners would declare them: numbers in [-1, 1] count 1/3, categories 1. phishing's
# 30 attributes, and w8a, come scaled in a way that tells nothing.
_NORMS = {
    "breast-cancer": math.sqrt(30 / 3),
    "a9a": math.sqrt(14),
    "splice": math.sqrt(60 * 7),  # letters coded 1 to 4, and not scaled
    "german": math.sqrt(24 / 3),
    "mushrooms": math.sqrt(22),
}
# Ranges printed in the sets' descriptions, rounded outward; svmguide1 prints none.
_SVMGUIDE1 = ((0.0, 300.0), (-10.0, 600.0), (-1.0, 1.0), (0.0, 180.0))
_RANGES = {
    "iris": ((4.0, 8.0), (2.0, 4.5), (1.0, 7.0), (0.0, 2.5)),
    "wine": (
        (11.0, 15.0),
        (0.5, 6.0),
        (1.0, 3.5),
        (10.0, 30.0),
        (70.0, 165.0),
        (0.5, 4.0),
        (0.0, 5.5),
        (0.0, 0.7),
        (0.0, 4.0),
        (1.0, 13.0),
        (0.4, 1.8),
        (1.0, 4.0),
        (250.0, 1700.0),
    ),
}


@dataclass(frozen=True, eq=False)
class Task:
    """One data set, inputs flat: (N, d) float32, targets (N,) int64."""

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int
    norm: float | None = None

    @property
    def parameters(self) -> int:
        """Of a linear model."""
        return (self.inputs.shape[1] + 1) * self.classes


def fetch(name: str, folder: Path | None, examples: int | None, features: str | None) -> Task:
    """A data set by its name; of the image sets at most ``examples`` records, the first ones."""
    images = name in ("mnist", "fashion-mnist")
    dataset = _load(name, folder)
    if images:
        dataset = _first(dataset, examples)
    if images and features is not None:
        from forethought.data.features import with_scattering

        dataset = with_scattering(dataset)
    if dataset.test is None or dataset.classes is None:
        raise ValueError(f"{name} has no test part or no classes")
    train, test = dataset.train, dataset.test
    norm = _NORMS.get(name, dataset.feature_norm)
    return Task(name, *_flat(train), *_flat(test), dataset.classes, norm)


def _load(name: str, folder: Path | None) -> Dataset:
    if name == "a9a":
        return load("svmlight:libsvm/a9a.gz", folder=folder, test="libsvm/a9a.t.gz")
    if name in ("phishing", "mushrooms", "splice", "w8a"):
        return load(f"svmlight:libsvm/{name}.gz", folder=folder)
    if name == "german":
        return load("svmlight:libsvm/german.numer_scale.gz", folder=folder)
    if name == "svmguide1":
        return _scaled(load("svmlight:libsvm/svmguide1.gz", folder=folder), _SVMGUIDE1)
    if name in ("wine", "iris"):
        return _of_scikit_learn(name)
    if name.startswith("clusters-"):
        return synthetic.like((int(name.removeprefix("clusters-")),), 3, 2_000, seed=1)
    return load(name, folder=folder)


def _scaled(dataset: Dataset, ranges: tuple[tuple[float, float], ...]) -> Dataset:
    """Numbers to [-1, 1] by public ranges, and clipped, as declared columns are."""
    low, high = np.array(ranges, np.float32).T

    def part(split: Split) -> Split:
        scaled = np.clip(2 * (split.inputs - low) / (high - low) - 1, -1, 1)
        return Split(scaled.astype(np.float32), split.targets)

    test = None if dataset.test is None else part(dataset.test)
    norm = math.sqrt(len(ranges) / 3)
    return Dataset(dataset.name, part(dataset.train), test, dataset.classes, feature_norm=norm)


def _of_scikit_learn(name: str) -> Dataset:
    bunch = getattr(datasets, f"load_{name}")()
    whole = Split(bunch.data.astype(np.float32), bunch.target.astype(np.int64))
    train, test = split_off(whole, None)
    return _scaled(Dataset(name, train, test, 3), _RANGES[name])


def _first(dataset: Dataset, examples: int | None) -> Dataset:
    if examples is None or dataset.test is None:
        return dataset
    tested = max(1000, examples // 4)
    return Dataset(
        dataset.name,
        Split(dataset.train.inputs[:examples], dataset.train.targets[:examples]),
        Split(dataset.test.inputs[:tested], dataset.test.targets[:tested]),
        dataset.classes,
        dataset.notes,
    )


def _flat(split: Split) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(split.inputs).flatten(1), torch.from_numpy(split.targets).long()

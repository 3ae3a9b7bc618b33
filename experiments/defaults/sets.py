"""The data sets of these experiments: public constants only, as the loaders give them.

Constants may be looked at on LOOKED_AT only. The split was written down on 2026-11-21 and again on
2026-11-22, before anything of the second group was run with the rules as they now are. svmguide1
had shown what means in the features do and is looked at since; german and mushrooms were tried by
mistake while the new rules were made and went the same way. wisconsin, kddcup99, diabetes and seven
synthetic tables of families.py took their places. iris, w8a and the clusters had been measured with
older rules; nothing was chosen by them. Later on 2026-11-22 a first run of the new rules (eight of
the held-out sets, ε = 0.1 and 1) was up to 5 points behind on two, ordinal and heavy-2, which are
looked at since; ordinal-2 and heavy-3, of other sizes and seeds, took their places.

Third version, 2026-11-22 06:45, written down before any of its held-out sets was run with the rule
that releases the norm of centred features: heavy-3, sparse-2 and clusters-200, which the second
version was furthest behind on, are looked at; heavy-4, heavy-5, sparse-3 and clusters-150 took
their places, and skewed and flags are recipes that nothing was tried on. The constants for released
norms were chosen on the older of LOOKED_AT and on heavy-a to counts-b and three sets of clusters of
seeds 7 to 9 (clusters are looked at as a recipe; so are counts and corner, of which one draw each
stays held out). diabetes, where the second version was 1.9 and 1.7 behind, stays: nothing was
chosen by it. The second version was run on eleven of the seventeen; NEW names the six others.
Sets of fewer than 1,000 records had twenty seeds at first, and have 200 since twenty of the third
version had a standard error of 1 to 2 points on diabetes: all of them, and nothing else changed.
"""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from families import FAMILIES
from numpy.typing import NDArray
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
    "svmguide1",
    "german",
    "mushrooms",
    "corner",
    "sparse",
    "heavy",
    "correlated",
    "imbalanced",
    "many",
    "ordinal",
    "heavy-2",
    "heavy-3",
    "sparse-2",
    "clusters-200",
    "clusters-200-7",
    "clusters-100-8",
    "clusters-30-9",
    "heavy-a",
    "heavy-b",
    "heavy-c",
    "sparse-b",
    "corner-a",
    "counts-a",
    "counts-b",
)
HELD_OUT = (
    "w8a",
    "iris",
    "clusters-20",
    "clusters-150",
    "wisconsin",
    "kddcup99",
    "diabetes",
    "corner-2",
    "sparse-3",
    "heavy-4",
    "heavy-5",
    "skewed",
    "flags",
    "counts",
    "ordinal-2",
    "mixture",
    "flipped",
)
# Of these, the ones that the second version was not run on.
NEW = ("clusters-150", "sparse-3", "heavy-4", "heavy-5", "skewed", "flags")
NAMES = LOOKED_AT + HELD_OUT
# Norms as their owners would declare them: numbers in [-1, 1] count 1/3, categories 1. Records of
# phishing have norm 1 each; w8a comes scaled in a way that tells nothing.
_NORMS = {
    "phishing": 1.0,
    "breast-cancer": math.sqrt(30 / 3),
    "a9a": math.sqrt(14),
    "splice": math.sqrt(60 * 7),  # letters coded 1 to 4, and not scaled
    "german": math.sqrt(24 / 3),
    "mushrooms": math.sqrt(22),
}
# Ranges printed in the sets' descriptions, rounded outward; svmguide1 prints none.
_SVMGUIDE1 = ((0.0, 300.0), (-10.0, 600.0), (-1.0, 1.0), (0.0, 180.0))
# The first number of a wisconsin record is its name.
_WISCONSIN = ((0.0, 1e9), *((1.0, 10.0),) * 9)
_RANGES = {
    "diabetes": (
        (18.0, 90.0),
        (1.0, 2.0),
        (15.0, 45.0),
        (60.0, 140.0),
        (90.0, 310.0),
        (40.0, 250.0),
        (20.0, 100.0),
        (2.0, 10.0),
        (3.0, 6.5),
        (55.0, 130.0),
    ),
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
        from forethought.data.features import with_features

        dataset = with_features(dataset, "scattering")
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
    if name in ("wine", "iris", "diabetes"):
        return _of_scikit_learn(name)
    if name == "wisconsin":
        whole = load("svmlight:libsvm/breast-cancer.gz", folder=folder)
        return _without_first(_scaled(whole, _WISCONSIN))
    if name == "kddcup99":
        return _kddcup99(folder or Path())
    if name in FAMILIES:
        return _of_family(name)
    if name.startswith("clusters-"):
        return _of_clusters(name)
    return load(name, folder=folder)


def _of_clusters(name: str) -> Dataset:
    """Three clusters in as many dimensions as the name says, of its seed where it has one."""
    dimensions, seed = map(int, (*name.split("-")[1:], "1")[:2])
    found = synthetic.like((dimensions,), 3, 2_000, seed=seed)
    return replace(found, feature_norm=math.sqrt(dimensions / 3))


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
    if name == "diabetes":  # a year later the disease is above or below 140, its usual measure
        bunch = datasets.load_diabetes(scaled=False)
        targets = (bunch.target > 140).astype(np.int64)
    else:
        bunch = getattr(datasets, f"load_{name}")()
        targets = bunch.target.astype(np.int64)
    train, test = split_off(Split(bunch.data.astype(np.float32), targets), None)
    return _scaled(Dataset(name, train, test, len(set(targets.tolist()))), _RANGES[name])


def _without_first(dataset: Dataset) -> Dataset:
    train, test = (
        Split(part.inputs[:, 1:], part.targets) for part in (dataset.train, dataset.test) if part
    )
    norm = math.sqrt(train.inputs.shape[1] / 3)
    return Dataset(dataset.name, train, test, dataset.classes, feature_norm=norm)


def _of_family(name: str) -> Dataset:
    family = FAMILIES[name]
    inputs, targets = family.arrays()
    train, test = (
        Split(inputs[part], targets[part])
        for part in (slice(family.examples), slice(family.examples, None))
    )
    return Dataset(name, train, test, family.classes, feature_norm=family.norm)


# Of kddcup99's 41 columns: logarithms of lengths and of times, by their ends; counts by theirs.
_LOGARITHMS = {0: 11.0, 4: 21.0, 5: 21.0}
_COUNTS = {22: 511.0, 23: 511.0, 31: 255.0, 32: 255.0, 9: 100.0, 12: 1000.0, 15: 1000.0, 16: 100.0}
_SMALL = (7, 8, 10, 14, 17, 18, 19)  # counts of rare things, 0 to 10
_PROTOCOLS = ("tcp", "udp", "icmp")


def _kddcup99(folder: Path) -> Dataset:
    """Every 25th connection of the training file and every 50th of the other: attack or not."""

    def part(name: str, every: int) -> Split:
        with gzip.open(folder / "kddcup99" / name, "rt", encoding="ascii") as file:
            rows = [
                line.rstrip(".\n").split(",") for at, line in enumerate(file) if at % every == 0
            ]
        found = [_connection(row) for row in rows]
        targets = [int(row[-1] != "normal") for row in rows]
        return Split(np.array(found, np.float32), np.array(targets, np.int64))

    train, test = part("kddcup.data_10_percent.gz", 25), part("corrected.gz", 50)
    norm = math.sqrt((train.inputs.shape[1] - len(_PROTOCOLS)) / 3 + 1)
    return Dataset("kddcup99", train, test, 2, feature_norm=norm)


def _connection(row: list[str]) -> NDArray[np.float64]:
    found = [float(row[1] == name) for name in _PROTOCOLS]
    for at, entry in enumerate(row[:-1]):
        if at in (1, 2, 3):  # protocol, service, flag
            continue
        value = float(entry)
        if at in _LOGARITHMS:
            value = math.log1p(value) / _LOGARITHMS[at]
        else:
            value /= _COUNTS.get(at, 10.0 if at in _SMALL else 1.0)
        found.append(2 * min(value, 1.0) - 1)
    return np.array(found)


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

"""The data sets of these experiments: public constants only, as the loaders give them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forethought.data import load
from forethought.data.dataset import Dataset, Split

NAMES = ("digits", "breast-cancer", "phishing", "a9a", "mnist", "fashion-mnist")


@dataclass(frozen=True, eq=False)
class Task:
    """One data set, inputs flat: (N, d) float32, targets (N,) int64."""

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int

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
    return Task(name, *_flat(train), *_flat(test), dataset.classes)


def _load(name: str, folder: Path | None) -> Dataset:
    if name == "a9a":
        return load("svmlight:libsvm/a9a.gz", folder=folder, test="libsvm/a9a.t.gz")
    if name in ("phishing", "mushrooms", "splice"):
        return load(f"svmlight:libsvm/{name}.gz", folder=folder)
    return load(name, folder=folder)


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

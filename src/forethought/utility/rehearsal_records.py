"""The records that a rehearsal's repeats train and test on: from a pool, or drawn for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from forethought.checks import whole
from forethought.data import Dataset
from forethought.data.dataset import Split
from forethought.data.synthetic import like
from forethought.utility.resemblance import Relation

PublicProxy = Dataset | Callable[[int], Dataset]


@dataclass(frozen=True)
class SyntheticSource:
    """From a seed to another task of one shape; see :func:`forethought.data.synthetic.like`."""

    shape: tuple[int, ...]
    classes: int
    examples: int
    noise: float = 1.0
    relation: ClassVar[Relation] = "synthetic"

    def __call__(self, seed: int) -> Dataset:
        return like(self.shape, self.classes, self.examples, noise=self.noise, seed=seed)


def synthetic(
    shape: tuple[int, ...], classes: int, examples: int, *, noise: float = 1.0
) -> SyntheticSource:
    """A source of synthetic data for :func:`rehearse`: every seed is another task of this shape.

    Args:
        shape, classes, examples, noise: see :func:`forethought.data.synthetic.like`.
    """
    return SyntheticSource(shape, classes, examples, noise)


DrawRecords = Callable[[int], tuple[Split, Split, float, str]]


def draws(data: PublicProxy, examples: int, test_examples: int | None, seed: int) -> DrawRecords:
    """From a repeat's number to training part, test part, share of distinct records, name.

    Raises:
        ValueError: a pool too small to test on, or a function that makes another size.
    """
    if not isinstance(data, Dataset):
        if test_examples is not None:
            raise ValueError("generated data has its own test part: leave test_examples out")

        def generate(repeat: int) -> tuple[Split, Split, float, str]:
            made = data(mixed(seed, repeat))
            if len(made.train) != examples or made.test is None or not len(made.test):
                tested = 0 if made.test is None else len(made.test)
                raise ValueError(
                    f"the function made {len(made.train)} training and {tested} test records: the "
                    f"plan is for {examples}, and a rehearsal needs some to test on"
                )
            return made.train, made.test, 1.0, made.name

        return generate
    parts = [data.train] if data.test is None else [data.train, data.test]
    inputs = np.concatenate([part.inputs for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    size = len(targets)
    default = max(1, size // 5) if data.test is None else len(data.test)
    tested = whole("test_examples", default if test_examples is None else test_examples)
    if tested >= size:
        raise ValueError(
            f"{data.name} has {size} records: {tested} to test on leave none to train on. Choose "
            "a smaller test_examples, or a larger source"
        )

    # Test parts are apart as long as the pool lasts, and training parts, too, where it is large:
    # records that repeats share would hide how much the next ones differ.
    apart = size >= 2 * (examples + tested)
    each = examples + tested if apart else tested

    def draw(repeat: int) -> tuple[Split, Split, float, str]:
        cycle, place = divmod(repeat, size // each)
        order = np.roll(np.random.default_rng([seed, cycle]).permutation(size), -place * each)
        held, rest = order[:tested], order[tested:]
        random = np.random.default_rng([seed, cycle, repeat])
        if not apart:
            rest = random.permutation(rest)
        chosen = rest[:examples] if examples <= len(rest) else random.choice(rest, examples)
        distinct = len(np.unique(chosen)) / examples
        return (
            Split(inputs[chosen], targets[chosen]),
            Split(inputs[held], targets[held]),
            distinct,
            data.name,
        )

    return draw


def mixed(seed: int, repeat: int) -> int:
    """A seed of its own for each repeat."""
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])

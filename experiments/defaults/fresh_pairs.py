"""The rule for a rehearsal's interval, and fresh pairs of data sets to measure it on.

Written down on 2026-11-22 at 11:34, before any pair below was run. All pairs of pairs.py count as
looked at since then, and the rule is calibrated on them:

**Rule.** The units are data sets, not pairs: pairs that share a data set resemble each other. With
the scores of K data sets, N_k pairs of the k-th, Q is the smallest score at which the weights
1 / ((K + 1) N_k) of the scores up to it sum to the level (hierarchical conformal prediction: Lee,
Barber and Willett 2023, "Distribution-free inference with hierarchical data", Theorem 1). The
interval of 90 % that one more run on the public data would have is widened by Q on both sides, in
log-odds, and never narrowed. What follows: if the next data set is drawn like those K
(exchangeable with them), an interval of a pair made of it holds with a chance of at least the
level. Of K = 12 that is known up to a level of 12/13; above it nothing is. Linear models and
perceptrons are calibrated on their own pairs, each relation by itself. It was chosen on the pairs
looked at, where leaving one set out of the twelve at a time it holds 117 of 120, 117 of 119
(linear), 117 of 120 and 117 of 119 (perceptron).

**Measured on** the pairs of :data:`TABLES` and :data:`DRAWN`: data sets that no rehearsal was run
on, 66 pairs for each relation ("same source", "same task"), of a linear model and of the perceptron
of 32 units. Reported are the shares that held, and the widths; whatever they are, the rule stays.

**Convolutional networks**: LeNet-5 on 14 or 16 pixels a side and the small CNN on 8, on
:data:`DRAWN` and, from their training parts alone, on the four sets of images that perceptrons are
calibrated on: 27 pairs for each relation. They are given the perceptron's interval, in a relation
where it holds nine tenths of these pairs; in another they are given none. A network that is neither
a perceptron nor convolutional is given none.

**Another source**, beside all that: scikit-learn's digits for MNIST and MNIST for the digits, both
brought to 8 × 8 pixels and declared "same task": eight pairs for every model, reported by
themselves. Nothing is decided by them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from drawn_images import KINDS, SIDE
from families import FAMILIES
from pairs import EPSILONS, Arrays, Pair, groups, of_classes, records, sizes
from sets import fetch
from torch.nn import functional

from forethought.data import Dataset, load
from forethought.data.dataset import Split

REAL = ("kddcup99", "wisconsin", "diabetes", "wine", "iris")
# Recipes of families.py, each pair with a table of its own.
RECIPES = {family.draw.__name__: family.draw for family in FAMILIES.values()}
TABLES = (*REAL, *RECIPES)
DRAWN = tuple(KINDS)
PHOTOGRAPHED = ("digits", "mnist", "fashion-mnist", "cifar10")
ANOTHER_SOURCE = "another source"
FEWEST, MOST = 7_500, 2_400  # records of a drawn set; of one that convolutional networks are run on


def fresh_pair(relation: str, number: int, convolutional: bool, folder: Path | None) -> Pair:
    """Pair ``number`` of a relation: the same each time.

    Args:
        relation: "same source", "same task" or :data:`ANOTHER_SOURCE`.
        convolutional: whether it is one that convolutional networks are run on.
    """
    places = {"same source": 0, "same task": 1, ANOTHER_SOURCE: 2}
    random = np.random.default_rng([20_261_123, places[relation], number, int(convolutional)])
    epsilon = float(random.choice(EPSILONS))
    if relation == ANOTHER_SOURCE:
        return _another_source(number, epsilon, random, folder)
    names = PHOTOGRAPHED + DRAWN if convolutional else TABLES + DRAWN
    name = names[number % len(names)]
    if name in TABLES:
        inputs, targets = _table(name, random, folder)
    else:
        side = 8 if not convolutional or number // len(names) % 2 else SIDE
        inputs, targets = _images(name, side, random, folder)
    order = random.permutation(len(targets))[: MOST if convolutional else None]
    inputs, targets = inputs[order], targets[order]
    classes = int(targets.max()) + 1
    words = f"{name}, {classes} classes of {inputs.shape[1]} features"
    half = len(targets) // 2
    if relation == "same task":
        # Small sets have few records of a class on each side of anything.
        least = min(20, len(targets) // (10 * classes))
        (inputs, targets), public, how = groups(
            name, (inputs, targets), random, name not in TABLES, least
        )
        words += f", {how}"
        size, tested, wanted = sizes(len(targets), random)
    else:
        public = inputs[half:], targets[half:]
        size, tested, wanted = sizes(half, random)
    public = public[0][:wanted], public[1][:wanted]
    return _cut(words, relation, epsilon, classes, (inputs, targets), size, tested, public)


def _cut(
    words: str,
    relation: str,
    epsilon: float,
    classes: int,
    private: Arrays,
    size: int,
    tested: int,
    public: Arrays,
) -> Pair:
    inputs, targets = private
    end = size + tested
    return Pair(
        words,
        relation,
        epsilon,
        classes,
        (inputs[:size], targets[:size]),
        (inputs[size:end], targets[size:end]),
        Dataset("public", Split(*public), None, classes),
    )


def _table(name: str, random: np.random.Generator, folder: Path | None) -> Arrays:
    if name in REAL:
        task = fetch(name, folder, None, None)
        inputs = torch.cat([task.inputs, task.test_inputs]).numpy()
        targets = torch.cat([task.targets, task.test_targets]).numpy()
        # Connections repeat themselves thousands of times: each is taken once.
        _, first = np.unique(np.column_stack([inputs, targets]), axis=0, return_index=True)
        return inputs[np.sort(first)], targets[np.sort(first)]
    features = int(random.integers(1, 9)) * 10
    classes = int(random.integers(2, 5))
    if name == "even":
        classes *= 3
    return RECIPES[name](FEWEST, features, classes, random)


def _images(name: str, side: int, random: np.random.Generator, folder: Path | None) -> Arrays:
    """Grey images, flat, of some classes."""
    count = int(random.choice([2, 3, 5]))
    if name in DRAWN:
        images, targets = KINDS[name](FEWEST, count, random)
    else:
        train = load(name, folder=folder).train
        kinds = random.permutation(int(train.targets.max()) + 1)[:count]
        flat, targets = of_classes((train.inputs, train.targets.astype(np.int64)), kinds)
        # digits 8 × 8, MNIST and Fashion-MNIST 28 × 28, CIFAR-10 in colour, 32 × 32.
        images = flat.reshape(len(flat), *train.inputs.shape[1:])
        images = images.mean(1) if images.ndim == 4 else images.reshape(len(flat), 8, 8)
    return _small(images, side), targets


def _small(images: np.ndarray, side: int) -> np.ndarray:
    """Brought to so many pixels a side, or 14 of 28, by averages or by repetition; flat."""
    now = images.shape[1]
    if now == 28 and side == 8:
        images = images[:, 2:26, 2:26]
        now = 24
    if now < side:
        images = images.repeat(side // now, axis=1).repeat(side // now, axis=2)
    elif now > side:
        pooled = functional.avg_pool2d(
            torch.from_numpy(images)[:, None], now // min(side, now // 2)
        )
        images = pooled[:, 0].numpy()
    return np.asarray(images, np.float32).reshape(len(images), -1)


def _another_source(
    number: int, epsilon: float, random: np.random.Generator, folder: Path | None
) -> Pair:
    """Digits from the one collection for digits from the other."""
    names = ("mnist", "digits") if number % 2 else ("digits", "mnist")
    count = (2, 3, 5, 10)[number // 2 % 4]
    kinds = random.permutation(10)[:count]
    found = []
    for name in names:
        inputs, targets = of_classes(records(name, folder), kinds)
        order = random.permutation(len(targets))
        found.append((inputs[order], targets[order]))
    private, public = found
    # Neither wants more private records than the smaller collection can rehearse.
    size, tested, wanted = sizes(min(len(private[1]), int(0.8 * len(public[1]))), random)
    words = f"{names[0]}, {count} classes, rehearsed on {names[1]}"
    shown = public[0][:wanted], public[1][:wanted]
    return _cut(words, ANOTHER_SOURCE, epsilon, count, private, size, tested, shown)

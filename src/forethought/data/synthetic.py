"""Synthetic data of a given shape, and data sets divided among the clients of a federation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from forethought.data.dataset import Dataset, Split
from forethought.data.files import DataError
from forethought.values.checks import real, whole

# Synthetic data of a given shape, for trials without public data.
#
# No real record is read. Only the shape, number of classes and number of examples of private data
# are used, all of which a plan takes as public anyway.


# Prototypes of a class of images; with two, a linear model errs as on real digits (3 to 8 %).
PROTOTYPES = 2
# An example is shifted by up to one pixel for so many pixels of a side, in each direction.
PIXELS_PER_SHIFT = 14
# Clusters are divided by this public constant and clipped to [−1, 1].
_CLUSTER_SCALE = 5.0


def like(
    shape: tuple[int, ...],
    classes: int | None,
    examples: int,
    *,
    test: int | None = None,
    noise: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """A synthetic data set of the same shape as a private one.

    Args:
        shape: of one example: (features,) gives :func:`clusters`, (channels, height, width) gives
            :func:`images`.
        classes: at least 2; None, with (features,): values of a regression, see :func:`slopes`.
        examples: size of the training part.
        test: size of the test part; by default a fifth of ``examples``, at least one a class.
        noise: difficulty: with 1 a good model makes a few per cent of errors, with 2 many.
        seed: the same seed gives the same data.

    Raises:
        ValueError, TypeError: a shape of another length, or a number outside its range.

    >>> like((1, 8, 8), 10, 100).train.inputs.shape
    (100, 1, 8, 8)
    """
    sides = tuple(whole("each side of shape", side) for side in shape)
    classes = None if classes is None else whole("classes", classes, least=2)
    examples = whole("examples", examples)
    tested = max(classes or 2, examples // 5) if test is None else whole("test", test)
    count = examples + tested
    match sides:
        case (features,) if classes is None:
            drawn = slopes(count, features, noise=noise, seed=seed)
            kind = "a sum of lines and waves of each feature"
        case (features,) if classes is not None:
            drawn = clusters(count, features, classes, noise=noise, seed=seed)
            kind = "Gaussian clusters, one a class"
        case (channels, height, width) if classes is not None:
            drawn = images(count, (channels, height, width), classes, noise=noise, seed=seed)
            kind = "smooth random images, shifted and noised"
        case _:
            raise ValueError(
                f"shape must be (features,) or, of classes, (channels, height, width), not {sides}"
            )
    return Dataset(
        "synthetic",
        Split(drawn.inputs[:examples], drawn.targets[:examples]),
        Split(drawn.inputs[examples:], drawn.targets[examples:]),
        classes,
        (f"synthetic data ({kind}; seed {seed}): no real record was read",),
    )


def clusters(
    examples: int, features: int, classes: int, *, noise: float = 1.0, seed: int = 0
) -> Split:
    """One Gaussian cluster a class, with values in [−1, 1].

    The centres are random directions at distance 3.5, so that with ``noise`` 1 two classes are
    confused with probability about Φ(−3.5/√2) ≈ 0.7 % (more where chance brings two centres close).

    Returns:
        inputs float32 (examples, features), targets int64 (examples,).
    """
    noise = real("noise", noise, least=0)
    random = np.random.default_rng([seed, 0])
    centres = random.standard_normal((classes, features))
    centres *= 3.5 / np.linalg.norm(centres, axis=1, keepdims=True)
    labels = random.integers(classes, size=examples)
    inputs = centres[labels] + noise * random.standard_normal((examples, features))
    scaled = np.clip(inputs / _CLUSTER_SCALE, -1, 1)
    return Split(scaled.astype(np.float32), labels.astype(np.int64))


def slopes(examples: int, features: int, *, noise: float = 1.0, seed: int = 0) -> Split:
    """A regression with targets in [−1, 1]: a sum of lines and half waves of the features, noised.

    Features are uniform in [−1, 1]. With ``noise`` 1, noise is a fifth of the targets' variance.

    Returns:
        inputs float32 (examples, features), targets float32 (examples,).
    """
    noise = real("noise", noise, least=0)
    random = np.random.default_rng([seed, 2])
    inputs = random.uniform(-1, 1, (examples, features))
    bent = random.random(features) < 0.5
    parts = np.where(bent, math.sqrt(2) * np.cos(math.pi * inputs), math.sqrt(3) * inputs)
    weights = random.standard_normal(features)
    signal = parts @ (weights / np.linalg.norm(weights))
    values = 0.3 * (signal + 0.5 * noise * random.standard_normal(examples))
    return Split(inputs.astype(np.float32), np.clip(values, -1, 1).astype(np.float32))


def images(
    examples: int, shape: tuple[int, int, int], classes: int, *, noise: float = 1.0, seed: int = 0
) -> Split:
    """Smooth random images with values in [0, 1].

    A class has two prototypes, which are smooth random fields. An example is a prototype shifted by
    up to 1/14 of a side in each direction, plus another smooth field and pixel noise, both scaled
    by ``noise``.

    Args:
        shape: (channels, height, width).

    Returns:
        inputs float32 (examples, *shape), targets int64 (examples,).
    """
    noise = real("noise", noise, least=0)
    channels, height, width = shape
    random = np.random.default_rng([seed, 1])
    scale = max(1.0, min(height, width) / 8)
    margin = min(height, width) // PIXELS_PER_SHIFT
    padded = (classes, PROTOTYPES, channels, height + 2 * margin, width + 2 * margin)
    prototypes = _smooth(random, padded, scale)
    labels = random.integers(classes, size=examples)
    which = random.integers(PROTOTYPES, size=examples)
    moves = random.integers(2 * margin + 1, size=(examples, 2))
    inputs = np.empty((examples, *shape), dtype=np.float32)
    for start in range(0, examples, 4096):  # in parts, to bound the memory of float64 arrays
        part = slice(start, min(start + 4096, examples))
        size = part.stop - part.start
        field = 0.7 * noise * _smooth(random, (size, *shape), scale)
        field += 0.5 * noise * random.standard_normal((size, *shape))
        drawn = zip(field, labels[part], which[part], moves[part], strict=True)
        for own, label, kind, (down, right) in drawn:
            own += prototypes[label, kind, :, down : down + height, right : right + width]
        inputs[part] = np.clip(0.5 + field / 4, 0, 1)
    return Split(inputs, labels.astype(np.int64))


def _smooth(
    random: np.random.Generator, shape: tuple[int, ...], scale: float
) -> NDArray[np.float64]:
    """Random fields of unit variance, correlated over about ``scale`` pixels of the last axes."""
    white = random.standard_normal(shape)
    widths = (0.0,) * (len(shape) - 2) + (scale, scale)
    # Averaging white noise over a Gaussian of width s leaves a variance of 1/(4π s²).
    return np.asarray(gaussian_filter(white, widths, mode="wrap") * 2 * scale * math.sqrt(math.pi))


# One data set divided among the clients of a federation, for simulations and rehearsals.
#
# In a real federation every client has its own records and nothing is divided; :func:`write_share`
# writes such a client's own folder. All ways but ``drawn`` give each record to exactly one client,
# which a statement over disjoint shares assumes.


Indices = NDArray[np.int64]
# A share without records has no mechanism: such a division is drawn again, at most so often.
_TRIES = 1000


def shares(
    labels: NDArray[Any],
    clients: int | None,
    how: str,
    generator: np.random.Generator,
    column: Sequence[Any] | NDArray[Any] | None = None,
) -> list[Indices]:
    """The records that each client holds.

    Args:
        labels: classes or values, (N,).
        clients: number of clients; None only with ``"column"``, which decides it.
        how: ``"iid"``: equal sizes, at random. ``"dirichlet:A"``: label skew; every class is
            divided by proportions from a symmetric Dirichlet distribution of concentration A > 0
            (Hsu, Qi and Brown 2019; Yurochkin et al. 2019); the smaller A, the fewer classes a
            client has. ``"power-law:A"``: at random, client i's size proportional to (i + 1)^−A, A
            ≥ 0. ``"column"``: one client for each different entry of ``column``, in sorted order.
            ``"drawn:SHARE"``: every client draws that share of all records independently, without
            replacement, so shares overlap (Bhaskar et al. use 10 %).
        generator: draws the division. Its seed is public: no guarantee depends on it.
        column: the entry of each record, (N,).

    Returns:
        For each client the indices of its records, sorted, int64; never empty.

    Raises:
        DataError: an unknown way, more clients than it can serve, or no column.

    >>> parts = shares(np.arange(10) % 2, 3, "iid", np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [4, 3, 3]
    """
    kind, colon, number = how.partition(":")
    if kind == "column":
        return _by_column(column, len(labels), clients)
    if kind not in _WAYS:
        raise DataError(
            f"unknown way to deal out records {how!r}: the choice is iid, dirichlet:0.5, "
            "power-law:1.2, column:NAME, drawn:0.1"
        )
    deal, example, bounds = _WAYS[kind]
    if (bounds is None and colon) or (bounds is not None and not _within(number, *bounds)):
        allowed = "stands alone" if bounds is None else f"goes with a number {bounds[2]}"
        raise DataError(f"{how!r}: {kind} {allowed}, for example {example!r}")
    if clients is None or isinstance(clients, bool) or clients < 1:
        raise DataError(f"clients must be a whole number of at least 1, not {clients!r}")
    if clients > len(labels):
        raise DataError(f"{len(labels)} records cannot be dealt to {clients} clients: one each")
    parameter = float(number) if number else 0.0
    for _ in range(_TRIES):
        parts = deal(np.asarray(labels), clients, parameter, generator)
        if all(len(part) for part in parts):
            return [np.sort(part).astype(np.int64) for part in parts]
    raise DataError(
        f"{how!r} left a client without a record in {_TRIES} deals: take fewer, or a milder skew"
    )


def share_of(dataset: Dataset, part: Indices) -> Dataset:
    """A data set whose training part is one share; the test part stays."""
    persons = None if dataset.persons is None else dataset.persons[part]
    return replace(dataset, train=dataset.train.at(part), sites=None, persons=persons)


def write_share(dataset: Dataset, folder: Path) -> Path:
    """Write a client's own folder: ``data.npz`` with its records, read as ``npz:PATH``.

    Args:
        dataset: one client's, see :func:`share_of`. A test part is written too.
        folder: made if missing, readable by its owner only.

    Returns:
        The path of the file.

    Raises:
        DataError: the folder has a data file already.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "data.npz"
    arrays = {"x_train": dataset.train.inputs, "y_train": dataset.train.targets}
    if dataset.test is not None:
        arrays |= {"x_test": dataset.test.inputs, "y_test": dataset.test.targets}
    try:
        with path.open("xb") as file:
            path.chmod(0o600)
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except FileExistsError:
        raise DataError(f"{path} exists: a client's records are not overwritten") from None
    return path


def _within(number: str, low: float, high: float, _words: str) -> bool:
    written = re.fullmatch(r"\d+(\.\d*)?|\.\d+", number)
    return written is not None and low < float(number) <= high


def _by_column(
    column: Sequence[Any] | NDArray[Any] | None, examples: int, clients: int | None
) -> list[Indices]:
    if column is None or len(column) != examples:
        found = "none" if column is None else f"one of {len(column)} entries"
        raise DataError(
            f"dealing by a column needs one entry for each of {examples} records: found {found}"
        )
    entries = np.asarray(column)
    kinds = np.unique(entries)
    if clients is not None and clients != len(kinds):
        raise DataError(
            f"the column makes {len(kinds)} clients: leave the number of clients ({clients}) out"
        )
    return [np.flatnonzero(entries == kind).astype(np.int64) for kind in kinds]


def _power_law(
    labels: NDArray[Any], clients: int, exponent: float, generator: np.random.Generator
) -> list[Indices]:
    weights = (1.0 + np.arange(clients)) ** -exponent
    # One record for each client, the rest proportional, rounded so that the sizes sum to N.
    ends = np.rint(np.cumsum(weights) / weights.sum() * (len(labels) - clients)).astype(int)
    sizes = 1 + np.diff(ends, prepend=0)
    return np.split(generator.permutation(len(labels)), np.cumsum(sizes)[:-1])


def _dirichlet(
    labels: NDArray[Any], clients: int, concentration: float, generator: np.random.Generator
) -> list[Indices]:
    kinds = np.unique(labels)
    if len(kinds) > len(labels) / 2:
        raise DataError("dirichlet deals out classes: these labels are values to regress on")
    pieces: list[list[Indices]] = [[] for _ in range(clients)]
    for kind in kinds:
        own = generator.permutation(np.flatnonzero(labels == kind))
        proportions = generator.dirichlet(np.full(clients, concentration))
        ends = np.rint(np.cumsum(proportions)[:-1] * len(own)).astype(int)
        for client, piece in enumerate(np.split(own, ends)):
            pieces[client].append(piece)
    return [np.concatenate(parts) for parts in pieces]


def _drawn(
    labels: NDArray[Any], clients: int, share: float, generator: np.random.Generator
) -> list[Indices]:
    size = round(share * len(labels))
    return [generator.choice(len(labels), size, replace=False) for _ in range(clients)]


# Way → its function, an example, and the bounds of its number (exclusive below) with their words.
_Deal = Callable[[NDArray[Any], int, float, np.random.Generator], list[Indices]]
_WAYS: dict[str, tuple[_Deal, str, tuple[float, float, str] | None]] = {
    "iid": (lambda y, k, _, drawn: np.array_split(drawn.permutation(len(y)), k), "iid", None),
    "dirichlet": (_dirichlet, "dirichlet:0.5", (0.0, 1e6, "above 0 and at most 1,000,000")),
    "power-law": (_power_law, "power-law:1.2", (-1.0, 20.0, "of at least 0 and at most 20")),
    "drawn": (_drawn, "drawn:0.1", (0.0, 1.0, "above 0 and at most 1")),
}

"""One data set dealt out to the clients of a federation, for simulations and rehearsals.

In a real federation every client brings its own records and nothing is dealt: :func:`write_share`
makes such a client's own folder. Every way but ``drawn`` gives each record to exactly one client,
which is what a statement over disjoint shares assumes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.data.dataset import Dataset
from forethought.data.error import DataError

Indices = NDArray[np.int64]
# A share without a record has no mechanism: such deals are drawn again, so often.
_TRIES = 1000


def shares(
    labels: NDArray[Any],
    clients: int | None,
    how: str,
    generator: np.random.Generator,
    column: Sequence[Any] | NDArray[Any] | None = None,
) -> list[Indices]:
    """Which records each client holds.

    Args:
        labels: classes or values, (N,).
        clients: how many there are; None goes with ``"column"`` only, which says so itself.
        how: ``"iid"``: equal sizes, at random. ``"dirichlet:A"``: label skew; every class is dealt
            by proportions from a symmetric Dirichlet distribution of concentration A > 0 (Hsu, Qi
            and Brown 2019; Yurochkin et al. 2019); the smaller A, the fewer classes a client has.
            ``"power-law:A"``: at random, client i's size in proportion to (i + 1)^−A, A ≥ 0.
            ``"column"``: one client for each different entry of ``column``, in sorted order.
            ``"drawn:SHARE"``: every client draws that share of all records by itself, without
            replacement: shares overlap (Bhaskar et al., their 10 %).
        generator: draws the deal. Its seed is public: a deal is no part of any guarantee.
        column: what each record belongs to, (N,).

    Returns:
        For each client the record numbers, sorted, int64; never empty.

    Raises:
        DataError: an unknown way, more clients than it can fill, or no column.

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
    deal, bounds = _WAYS[kind]
    if (bounds is None and colon) or (bounds is not None and not _within(number, *bounds)):
        allowed = "stands alone" if bounds is None else f"goes with a number {bounds[2]}"
        raise DataError(f"{how!r}: {kind} {allowed}, for example {_EXAMPLES[kind]!r}")
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
        f"{how!r} left a client of {clients} without a record in {_TRIES} deals of "
        f"{len(labels)} records: take fewer clients or a milder skew"
    )


def disjoint(parts: Sequence[Indices]) -> bool:
    """Whether no record is in two shares: what a statement over disjoint shares assumes."""
    everything = np.concatenate(list(parts))
    return len(np.unique(everything)) == len(everything)


def share_of(dataset: Dataset, part: Indices) -> Dataset:
    """A data set whose training part are the records of one share; the test part stays."""
    persons = None if dataset.persons is None else dataset.persons[part]
    return replace(dataset, train=dataset.train.at(part), sites=None, persons=persons)


def write_share(dataset: Dataset, folder: Path) -> Path:
    """Write a client's own folder: ``data.npz`` with its records, read as ``npz:PATH``.

    Args:
        dataset: one client's, see :func:`share_of`. A test part is written along.
        folder: made, readable by its owner only.

    Returns:
        The file.

    Raises:
        DataError: there is a data file already.
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
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", number):
        return False
    return low < float(number) <= high


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
            f"the column has {len(kinds)} different entries, which makes as many clients: leave "
            f"the number of clients ({clients}) out"
        )
    return [np.flatnonzero(entries == kind).astype(np.int64) for kind in kinds]


def _iid(
    labels: NDArray[Any], clients: int, _parameter: float, generator: np.random.Generator
) -> list[Indices]:
    return np.array_split(generator.permutation(len(labels)), clients)


def _power_law(
    labels: NDArray[Any], clients: int, exponent: float, generator: np.random.Generator
) -> list[Indices]:
    weights = (1.0 + np.arange(clients)) ** -exponent
    # One record each, the rest in proportion, rounded so that nothing is lost.
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


# Way → how it deals, and the bounds of its number, exclusive below, in words.
_Deal = Callable[[NDArray[Any], int, float, np.random.Generator], list[Indices]]
_WAYS: dict[str, tuple[_Deal, tuple[float, float, str] | None]] = {
    "iid": (_iid, None),
    "dirichlet": (_dirichlet, (0.0, 1e6, "above 0 and at most 1,000,000")),
    "power-law": (_power_law, (-1.0, 20.0, "of at least 0 and at most 20")),
    "drawn": (_drawn, (0.0, 1.0, "above 0 and at most 1")),
}
_EXAMPLES = {
    "iid": "iid",
    "dirichlet": "dirichlet:0.5",
    "power-law": "power-law:1.2",
    "drawn": "drawn:0.1",
}

"""Tables of comma-separated values: numbers as they are, words one-hot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forethought.caveats import Caveat
from forethought.data.dataset import Dataset, Split, below
from forethought.data.error import DataError
from forethought.data.labels import Declared, Labels

COLUMN_KINDS = Caveat(
    "preparation-from-data", "whether a column holds numbers or words was decided by its entries"
)


@dataclass(frozen=True)
class Aside:
    """Columns that are no features, by name; in a file without names by number, from 0.

    Args:
        label: the target's. labels: those of several, in place of one.
        split_by: keeps a person's records on one side of the split.
        site: which client of a federation holds a record. person: whose row it is; all rows of a
            person are then one record (:mod:`forethought.data.persons`).
    """

    label: str
    split_by: str | None = None
    site: str | None = None
    person: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """All of them."""
        found = (self.label, self.split_by, self.site, self.person, *self.labels)
        return {name for name in found if name}


def load_csv(
    name: str,
    path: Path,
    test: Path | None,
    holdout: float | None,
    aside: Aside,
    declared: Declared | None = None,
) -> Dataset:
    """Features from every column but the label's; words become one column a category.

    A column is numeric when most of its first entries are numbers; then all of them must be.
    Otherwise each different word is a category, with a column of its own that is 1 where the word
    stands. The file is read in pieces, in about twice the memory of its features.

    Args:
        aside: columns that are no features; the label's number may be −1 for the last column.
        declared: what the user says of labels and features.

    Raises:
        DataError: a file is damaged, a line has too few or too many entries, a number is missing or
            not finite, or the label's column is unknown.
    """
    from forethought.data.undeclared_columns import Opened  # it loads polars

    if not aside.label:
        raise DataError(
            f"{path}: which column is the label? Name it with label=, or give its number "
            "(−1 for the last) if the file has no line of names"
        )
    declared = declared or Declared()
    opened = Opened.of(path, aside.label)
    no_features = {opened.label}
    places: dict[str, str] = {}
    for option, column, purpose in (
        ("split_by", aside.split_by, "to split by"),
        ("site", aside.site, "to deal records out by"),
    ):
        if column is not None:
            places[option] = opened.place(column, purpose)
            if places[option] == opened.label:
                raise DataError(f"{path}: {option} names the label's column {column!r}")
            no_features.add(places[option])
    split_by, site = places.get("split_by"), places.get("site")
    found = opened.read(no_features, identities=test is None, split_by=split_by, site=site)
    found.settle()
    labels = Labels(path, found.labels, declared)
    if declared.features not in (None, len(found.titles)):
        raise DataError.unexpected(
            path, f"{len(found.titles)} features", f"the declared {declared.features}"
        )
    targets = labels.encode(path, found.labels)
    everything = np.ones(len(targets), bool)
    if test is None:
        held = below(np.concatenate(found.fractions), holdout)
        stay, out = found.features(~held, held)
        train, rest = Split(stay, targets[~held]), Split(out, targets[held])
    else:
        held = ~everything
        train = Split(found.features(everything)[0], targets)
        other = Opened.of(test, aside.label).aligned(opened).read(no_features, like=found)
        wanted = labels.encode(test, other.labels)
        rest = Split(other.features(np.ones(len(wanted), bool))[0], wanted)
    notes = ("numbers as they are in the file, not rescaled",)
    caveats = (*declared.caveats, *labels.caveats, COLUMN_KINDS)
    if found.has_categories:
        caveats = (*caveats, Caveat("categories-from-data"))
    sites = None if site is None else np.array(found.sites)[~held]
    encoder = found.encoder(opened.label, labels)
    return Dataset(name, train, rest, labels.classes, notes, caveats, sites, encoder)

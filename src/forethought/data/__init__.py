"""Loaders: real data as plain arrays, scaled by public constants only.

``load("mnist")`` or ``load("csv:patients.csv", label="outcome")`` gives a :class:`Dataset` of NumPy
arrays. No scaling constant comes from the data, so loading costs no privacy. If loading reads other
facts from a file (which labels, which categories), the data set's caveats say so.
"""

from typing import TYPE_CHECKING, Any

from forethought.data.columns import Encoder, TableSchema
from forethought.data.dataset import Dataset, Split, of_persons
from forethought.data.files import DataError, TableFormat
from forethought.data.sources import load, names

if TYPE_CHECKING:
    from forethought.data.features import features_of

__all__ = [
    "DataError",
    "Dataset",
    "Encoder",
    "Split",
    "TableFormat",
    "TableSchema",
    "features_of",
    "load",
    "names",
    "of_persons",
]


def __getattr__(name: str) -> Any:
    if name != "features_of":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forethought.data.features import features_of  # loads torch

    return features_of

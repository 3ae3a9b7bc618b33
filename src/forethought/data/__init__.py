"""Loaders: real data as plain arrays, scaled by public constants only.

``load("mnist")`` or ``load("csv:patients.csv", label="outcome")`` gives a :class:`Dataset` of NumPy
arrays. No constant of a scaling comes from the data, so loading costs no privacy; where a file
itself decides something (which labels, which categories), the data set's notes say so.
"""

import importlib
from typing import TYPE_CHECKING, Any

from forethought.data.dataset import Dataset, Split
from forethought.data.files import DataError
from forethought.data.sources import load, names

if TYPE_CHECKING:
    from forethought.data.encoder import Encoder, TableSchema
    from forethought.data.features import features_of
    from forethought.data.persons import of_persons
    from forethought.data.reading import TableFormat

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
# Loaded on first use: they bring polars or torch along, which most sources do without.
_LATER = {
    "features_of": "features",
    "of_persons": "persons",
    "Encoder": "encoder",
    "TableFormat": "reading",
    "TableSchema": "encoder",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)

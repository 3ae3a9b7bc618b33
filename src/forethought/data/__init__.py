"""Loaders: real data as plain arrays, scaled by public constants only.

``load("mnist")`` or ``load("csv:patients.csv", label="outcome")`` gives a :class:`Dataset` of NumPy
arrays. No scaling constant comes from the data, so loading costs no privacy. If loading reads other
facts from a file (which labels, which categories), the data set's caveats say so.
"""

from typing import TYPE_CHECKING

from forethought.data.columns import Encoder, TableSchema
from forethought.data.dataset import Dataset, Split, of_persons
from forethought.data.files import DataError, TableFormat
from forethought.data.sources import load, names
from forethought.names import on_first_use

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


# It loads torch.
__getattr__, __dir__ = on_first_use(globals(), {"features": "features_of"})[1:]

"""Loaders: real data as plain arrays, scaled by public constants only.

``load("mnist")`` or ``load("csv:patients.csv", label="outcome")`` gives a :class:`Dataset` of NumPy
arrays. No constant of a scaling comes from the data, so loading costs no privacy; where a file
itself decides something (which labels, which categories), the data set's notes say so.
"""

from forethought.data.dataset import DataError, Dataset, Split
from forethought.data.sources import load, names

__all__ = ["DataError", "Dataset", "Split", "load", "names"]

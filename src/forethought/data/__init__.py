"""Loaders: real data as plain arrays, scaled by public constants only.

``load("mnist")`` or ``load("csv:patients.csv", label="outcome")`` gives a :class:`Dataset` of NumPy
arrays. No scaling constant comes from the data, so loading costs no privacy. If loading reads other
facts from a file (which labels, which categories), the data set's caveats say so.
"""

from forethought.names import on_first_use

# Module → its public names.
_HELD = {
    "columns": "Encoder TableSchema",
    "dataset": "Dataset Split of_persons",
    "features": "features_of",
    "files": "DataError TableFormat",
    "sources": "load names",
    "tables": "",
}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)

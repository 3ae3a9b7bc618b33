"""Private counts, sums, means, histograms, quantiles, survival curves and AUC.

:func:`request` plans a release, :meth:`Request.release` makes it; :func:`release` does both.
"""

from forethought.names import on_first_use

# Module → its public names.
_HELD = {
    "curves": "AUC Quantiles Survival",
    "kinds": "Accuracy Count Estimate Histogram Mean Statistic Sum",
    "released": "Released Request release request",
    "sections": "statistic",
}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)

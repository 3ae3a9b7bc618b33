"""Private counts, sums, means, histograms, quantiles, survival curves and AUC.

:func:`request` plans a release, :meth:`Request.release` makes it; :func:`release` does both.
"""

from forethought.statistics.curves import AUC as AUC
from forethought.statistics.curves import Quantiles as Quantiles
from forethought.statistics.curves import Survival as Survival
from forethought.statistics.kinds import Accuracy as Accuracy
from forethought.statistics.kinds import Count as Count
from forethought.statistics.kinds import Estimate as Estimate
from forethought.statistics.kinds import Histogram as Histogram
from forethought.statistics.kinds import Mean as Mean
from forethought.statistics.kinds import Statistic as Statistic
from forethought.statistics.kinds import Sum as Sum
from forethought.statistics.released import Released as Released
from forethought.statistics.released import Request as Request
from forethought.statistics.released import release as release
from forethought.statistics.released import request as request
from forethought.statistics.sections import statistic as statistic

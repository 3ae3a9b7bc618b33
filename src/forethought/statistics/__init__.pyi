"""The names of forethought.statistics: written by tools/options.py."""

from .curves import AUC as AUC
from .curves import Quantiles as Quantiles
from .curves import Survival as Survival
from .kinds import Accuracy as Accuracy
from .kinds import Count as Count
from .kinds import Estimate as Estimate
from .kinds import Histogram as Histogram
from .kinds import Mean as Mean
from .kinds import Statistic as Statistic
from .kinds import Sum as Sum
from .released import Released as Released
from .released import Request as Request
from .released import release as release
from .released import request as request
from .sections import statistic as statistic

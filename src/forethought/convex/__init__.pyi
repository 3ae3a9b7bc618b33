"""The names of forethought.convex: written by tools/options.py."""

from . import schedules as schedules
from .descent import Descended as Descended
from .descent import bounded_rows as bounded_rows
from .descent import descend as descend
from .descent import descend_steered as descend_steered
from .descent import descend_unprotected as descend_unprotected
from .planning import DescentPlan as DescentPlan
from .planning import plan as plan
from .problems import DeclaredLoss as DeclaredLoss
from .problems import HuberRegression as HuberRegression
from .problems import LinearRegression as LinearRegression
from .problems import LogisticRegression as LogisticRegression
from .problems import SmoothedHinge as SmoothedHinge
from .problems import SoftmaxRegression as SoftmaxRegression

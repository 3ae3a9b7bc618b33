"""The names of forethought.accounting: written by tools/options.py."""

from .exact import calibrate as calibrate
from .exact import delta as delta
from .exact import epsilon as epsilon
from .exact import epsilon_curve as epsilon_curve
from .exact import noise_multiplier as noise_multiplier
from .exact import privacy_loss as privacy_loss
from .interval import Interval as Interval
from .statement import Statement as Statement
from .statement import account as account
from .tradeoff import TradeOff as TradeOff
from .verification import verify as verify

"""The names of forethought.report: written by tools/options.py."""

from . import audit as audit
from . import figures as figures
from . import holders as holders
from . import page as page
from . import terminal as terminal

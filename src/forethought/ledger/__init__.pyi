"""The names of forethought.ledger: written by tools/options.py."""

from . import book as book
from . import chain as chain
from . import identity as identity
from . import page as page
from . import paid_run as paid_run
from . import service as service
from . import store as store

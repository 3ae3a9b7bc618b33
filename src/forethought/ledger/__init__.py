"""The ledger: one budget for all that is ever released from a data set."""

from forethought.names import on_first_use

# Loaded on first use, since books need a database's library or a web server's.
_HELD = {"": "book chain identity page paid_run service store"}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)

"""Pages, figures and terminal output about plans, runs and statements."""

from forethought.names import on_first_use

# Loaded on first use, since figures and tables take a second to load.
_HELD = {"": "audit figures holders page terminal"}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)

"""Where a number stops making sense as a setting: beyond, a request is refused."""

from __future__ import annotations

# Promises nobody can tell from δ = 0; further out the accountant's numbers leave a double's range.
LEAST_DELTA = 1e-60
MOST_STEP_SIZE = 1e6


class PlanError(ValueError):
    """A request that no plan fulfils: over- or under-determined, or out of reach."""

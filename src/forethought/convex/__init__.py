"""Noisy full-batch gradient descent for linear models, with a default schedule without tuning.

The names below are loaded on first use; only ``descend`` and its relatives load torch.
"""

from forethought.names import on_first_use

# Module → its public names; those of "" are modules.
_HELD = {
    "": "schedules",
    "descent": "Descended bounded_rows descend descend_steered descend_unprotected",
    "planning": "DescentPlan plan",
    "problems": "DeclaredLoss HuberRegression LinearRegression LogisticRegression SmoothedHinge "
    "SoftmaxRegression",
}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)

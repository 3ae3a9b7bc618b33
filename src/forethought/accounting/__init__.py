"""Privacy accounting, from a Mechanism to a Statement; importable without torch.

The names below are loaded on first use. :mod:`forethought.accounting.tradeoff` is a module; its
function is ``forethought.tradeoff``.
"""

from forethought.names import on_first_use

# Module → its public names.
_HELD = {
    "exact": "calibrate delta epsilon epsilon_curve noise_multiplier privacy_loss",
    "interval": "Interval",
    "statement": "Statement account",
    "tradeoff": "TradeOff",
    "verification": "verify",
}
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)

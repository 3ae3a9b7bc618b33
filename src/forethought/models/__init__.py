"""A zoo of models that train privately, and the door for the user's own.

``build("lenet5", inputs=(1, 28, 28), classes=10, seed=0)`` gives an ordinary torch module. No model
here mixes examples: normalisation, where there is any, is within one example.
"""

from forethought.models.zoo import build, names

__all__ = ["build", "names"]

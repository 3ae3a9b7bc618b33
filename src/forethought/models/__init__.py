"""A zoo of models that train privately, and a way to use your own model.

``build("lenet5", inputs=(1, 28, 28), classes=10, seed=0)`` gives an ordinary torch module. No model
here mixes examples: a model that normalises does so within one example.
"""

from forethought.models.zoo import build, names

__all__ = ["build", "names"]

"""Averages of the iterates: post-processing of what was released, so they cost no privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from forethought.use import Averaging


class IterateAverage:
    """A running average of parameters; of fixed size, exactly resumable.

    Args:
        averaging: which average. ``exponential`` moves by 1 − min(decay, (1 + t)/(10 + t)) towards
            iterate t = 1, 2, …, so that early iterates do not weigh on a short run; ``tail`` is
            the even mean of the last ⌈fraction·rounds⌉ iterates.
        parameters: name → parameter, whose iterates are averaged.
        rounds: length of the run.
    """

    def __init__(
        self, averaging: Averaging, parameters: Mapping[str, torch.Tensor], rounds: int
    ) -> None:
        self._averaging = averaging
        self._parameters = dict(parameters)
        self._start = rounds - math.ceil(averaging.fraction * rounds)
        self._average = (
            {}
            if averaging.kind == "none"
            else {name: value.detach().clone() for name, value in self._parameters.items()}
        )
        self._pairs = [(self._average[name], self._parameters[name]) for name in self._average]

    def update(self, done: int) -> None:
        """Take in the parameters as they are after ``done`` rounds."""
        if not self._pairs:
            return
        if self._averaging.kind == "exponential":
            weight = 1 - min(self._averaging.decay, (1 + done) / (10 + done))
        else:
            # Before the tail begins the average is the iterate itself.
            weight = 1 / max(1, done - self._start)
        for average, parameter in self._pairs:
            average.lerp_(parameter.detach(), weight)

    @property
    def values(self) -> dict[str, torch.Tensor]:
        """Name → averaged parameter (the parameters themselves without averaging)."""
        return self._average or {name: p.detach() for name, p in self._parameters.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint has to hold."""
        return self._average

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """The inverse of :meth:`state`."""
        for name, average in self._average.items():
            average.copy_(state[name])

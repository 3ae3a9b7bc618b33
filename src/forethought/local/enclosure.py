"""The place in which one group's algorithm runs: the model itself, and afterwards nothing of it is
left.

A group's update may follow from the round's weights, its own records and its own random numbers.
So before each group everything that Python can reach from model, loss and algorithm is as it was
when the round began: parameters, buffers, attributes, closures, globals, generators.
"""

from __future__ import annotations

import contextvars
import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import boundary, vmap_mode
from forethought.gradients.boundary import Refused
from forethought.gradients.passes import Alone
from forethought.gradients.state import ExternalState, State
from forethought.gradients.vmap_mode import seeded
from forethought.local.joined import Joined
from forethought.turns import turns

Work = Callable[[AbstractContextManager[Any]], Mapping[str, Tensor]]


class Bare:
    """A model without user code (:mod:`.known`): nothing but its weights can change in a group.

    Args:
        model: its trainable parameters are what updates are about.

    Attributes:
        trained: name → trainable parameter. start: name → its value when the round began.
        joined: lays them end to end. first: what they were when the round began, so laid.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        values = [p.detach() for p in self.trained.values()]
        self.joined = Joined(values)
        self.first = self.joined.join(values)
        self.start = dict(zip(self.trained, self.joined.part(self.first), strict=True))

    @turns
    def run(self, work: Work, seed: int) -> dict[str, Tensor]:
        """One group's update; see :meth:`Enclosure.run`."""
        seeded(seed)
        kept = {name: p.grad for name, p in self.trained.items()}
        try:
            return dict(work(nullcontext()))
        finally:
            for name, parameter in self.trained.items():
                parameter.grad = kept[name]
                parameter.data.copy_(self.start[name])


class Enclosure:
    """The model as it is at the beginning of a round.

    Args:
        model: its trainable parameters are what updates are about. roots: what else user code can
            remember things in: the loss, the algorithm.

    Raises:
        ValueError: hooks that see several groups, or an iterator that cannot be put back.

    Attributes:
        trained: name → trainable parameter. start: name → its value when the round began.
        joined: lays them end to end. first: what they were when the round began, so laid.
    """

    @turns
    def __init__(self, model: nn.Module, *roots: object) -> None:
        self.model = model
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        values = [p.detach() for p in self.trained.values()]
        self.joined = Joined(values)
        self.first = self.joined.join(values)
        self.start = dict(zip(self.trained, self.joined.part(self.first), strict=True))
        modules = list(model.named_modules())
        try:
            boundary.require_bare_torch()
            vmap_mode.hooked(modules)
            self._surroundings = ExternalState([m for _, m in modules], model, *roots)
        except Refused as reason:
            raise ValueError(str(reason)) from None
        self._state = State(modules)
        self._alone = Alone(model, True)

    @turns
    def run(self, work: Work, seed: int) -> dict[str, Tensor]:
        """One group's update.

        Args:
            work: the algorithm; runs what the user wrote with the mode that it is given.
            seed: of what it draws from torch's generators.

        Raises:
            ValueError: it writes to what is not its own, or keeps what it computed.
        """
        seeded(seed)
        alone = self._alone.again()
        kept = {name: p.grad for name, p in self.trained.items()}
        try:
            # In a context of its own: what is left in context variables goes with it.
            found = contextvars.copy_context().run(work, alone)
            update = {name: value.detach().clone() for name, value in found.items()}
            del found
            written = self._state.parameters_changed()
        except Refused as reason:
            module = vmap_mode.module_at_fault(self.model, reason)
            raise ValueError(f"{module}: {reason}") from None
        finally:
            for name, parameter in self.trained.items():
                parameter.grad = kept[name]
                parameter.data.copy_(self.start[name])
            self._surroundings.restore()
            with torch.no_grad():
                self._state.restore()
        if written:
            raise ValueError(
                f"the model changes itself while it runs: {', '.join(written[:5])} is written to "
                "in the forward pass; compute a new tensor instead"
            )
        if alone.made():
            gc.collect()
            if alone.made():
                raise ValueError(
                    "the model, loss or algorithm keeps values of a group where they cannot be "
                    "put back: keep nothing between groups"
                )
        return update

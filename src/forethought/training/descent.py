"""From noised sums to optimizer steps: what is not noised cannot reach a model here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch

from forethought.mechanism import Correlated
from forethought.plans import Plan
from forethought.privacy import Round
from forethought.rounds.flat import Layout
from forethought.rounds.private_sum import NoisedSum
from forethought.training.filters import MeanFilter, make_filter
from forethought.training.optimizers import make_optimizer


@runtime_checkable
class CountsOnNoise(Protocol):
    """An optimizer that is told the noise of its gradients, independent from round to round."""

    def expect_noise(self, variance: float) -> None: ...


class Descent:
    """Steps an optimizer along noised means; memory does not grow with the number of rounds.

    Args:
        parameters: name → trainable parameter, those that the noised sums are about.
        optimizer: over the same parameters.
        through: what noised means go through before the optimizer; None: nothing.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        through: MeanFilter | None = None,
    ) -> None:
        self.parameters, self.optimizer, self._filter = dict(parameters), optimizer, through
        self._last: dict[str, torch.Tensor] = {}  # the weights before the last step
        self._kept: tuple[Layout, torch.Tensor, dict[str, torch.Tensor]] | None = None

    def step(
        self,
        noised: NoisedSum | Sequence[NoisedSum],
        step_size: float | None,
        divisor: float | None = None,
    ) -> None:
        """Step along a noised mean, or along the sum of several holders' noised sums.

        Args:
            noised: what was released.
            step_size: None leaves the optimizer its own.
            divisor: what the sum is divided by; default: the divisors of the rounds together.

        Raises:
            TypeError: anything but noised sums. ValueError: sums about other parameters.
        """
        sums = [noised] if isinstance(noised, NoisedSum) else list(noised)
        for one in sums:
            if not isinstance(one, NoisedSum):
                raise TypeError(
                    f"an optimizer steps along a NoisedSum, not {type(one).__name__}: release it "
                    "from a PrivateSum"
                )
            if one.layout.names != tuple(self.parameters):
                raise ValueError("a noised sum about other parameters than the optimizer's")
        total = sums[0].vector if len(sums) == 1 else torch.stack([s.vector for s in sums]).sum(0)
        whole = sum(one.round.divisor for one in sums) if divisor is None else divisor
        mean = total / whole
        variance = sum(one.round.noise_std**2 for one in sums) / whole**2
        if self._filter is not None:
            mean, variance = self._filter.filtered(mean, variance)
            self._last = {name: p.detach().clone() for name, p in self.parameters.items()}
        for name, part in self._mean(mean, sums[0].layout).items():
            self.parameters[name].grad = part
        if step_size is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = step_size
        if isinstance(self.optimizer, CountsOnNoise):
            self.optimizer.expect_noise(variance)
        self.optimizer.step()

    @contextmanager
    def ahead(self, coming: Round) -> Iterator[None]:
        """The weights at which the filter wants the gradients of a round; then as they were."""
        steps = 0.0 if self._filter is None else self._filter.ahead(coming.mean_variance)
        if not steps or not self._last:
            yield
            return
        here = {name: p.detach().clone() for name, p in self.parameters.items()}
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.add_(here[name] - self._last[name], alpha=steps)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(here[name])

    def filter_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What the filter needs to go on: tensors, and JSON-ready values."""
        if self._filter is None:
            return {}, {}
        tensors, values = self._filter.state()
        return {**tensors, **{f"last/{name}": part for name, part in self._last.items()}}, values

    def restore_filter(
        self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]
    ) -> None:
        """The inverse of :meth:`filter_state`."""
        if self._filter is None:
            return
        device = next(iter(self.parameters.values())).device
        own = {name: part.to(device) for name, part in tensors.items()}
        self._last = {n: own.pop(f"last/{n}") for n in self.parameters if f"last/{n}" in own}
        self._filter.restore(own, values)

    def _mean(self, mean: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
        # Where all parameters have one precision, one vector is converted and kept.
        if len(set(layout.dtypes)) > 1:
            views = layout.views(mean)
            return {name: view.to(self.parameters[name].dtype) for name, view in views.items()}
        if self._kept is None or self._kept[0] is not layout:
            flat = layout.zeros(layout.dtypes[0])
            self._kept = (layout, flat, layout.views(flat))
        self._kept[1].copy_(mean)
        return self._kept[2]

    def clear(self) -> None:
        """Take the gradients off the parameters: the model is as it was, but for its weights."""
        for parameter in self.parameters.values():
            parameter.grad = None


def descent_of(
    plan: Plan,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer | None = None,
) -> Descent:
    """What steps along a plan's noised sums.

    Args:
        optimizer: in place of the plan's own.

    Raises:
        ValueError: no such optimizer, or one or a filter that counts on noise which is independent
            from round to round, where it is not.
    """
    own = make_optimizer(plan.optimizer, parameters.values()) if optimizer is None else optimizer
    counts = plan.gradient_filter is not None or isinstance(own, CountsOnNoise)
    if counts and any(isinstance(part, Correlated) for part in plan.privacy.mechanism):
        raise ValueError(
            "gradient_filter= and the optimizer 'adam-bc' count on independent noise, and "
            "correlated noise cancels over the rounds by itself: drop them, or noise='correlated'"
        )
    return Descent(parameters, own, make_filter(plan.gradient_filter, plan.rounds))

"""Local updates: the weight change of a group's records by any optimizer, which leaves no trace."""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from forethought.gradients import batches, boundary, vmap_mode
from forethought.gradients.batches import Loss
from forethought.gradients.boundary import ExternalState, ModuleState, Refused, turns
from forethought.gradients.clipped import declared_separable
from forethought.gradients.passes import Alone
from forethought.gradients.vmap_mode import seeded
from forethought.values.mechanism import INNER, Local, imported

# Parameters as one vector: an inner step then needs a few calls of torch, not a few for each.


class Joined:
    """Concatenates tensors of the parameters' shapes, and splits them again.

    Args:
        parameters: if they have different types or devices, each tensor stays by itself.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._shapes = [p.shape for p in parameters]
        self._sizes = [p.numel() for p in parameters]
        self._together = len({(p.dtype, p.device) for p in parameters}) == 1

    def join(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """A list with one vector, a copy of all tensors; with a copy of each if types differ."""
        if not self._together:
            return [tensor.clone() for tensor in tensors]
        return [torch.cat([tensor.flatten() for tensor in tensors])]

    def part(self, joined: Sequence[Tensor]) -> list[Tensor]:
        """The parts of the result of :meth:`join`, in the parameters' shapes, sharing memory."""
        if not self._together:
            return list(joined)
        pieces = torch.split(joined[0], self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


# Inner optimizers: torch.optim's own, new for every group, which update a displacement.
#
# The optimizer's parameter is w − w₀, which starts at zero, so that one plain step of size 1 is
# minus the gradient to the last bit. Weight decay acts on w, so it is added here, as torch.optim
# defines it. One object can also update the stacked displacements of many groups, because all seven
# rules are elementwise.


class Displacement:
    """The displacement of the weights by an inner optimizer.

    Args:
        local: the algorithm. start: the weights before the first step, in any shapes.

    Raises:
        ValueError: options that torch.optim refuses.

    Attributes:
        moved: w − w₀, in the shapes of ``start``.
    """

    def __init__(self, local: Local, start: Sequence[Tensor]) -> None:
        kind = INNER[local.optimizer]
        options: dict[str, Any] = {**kind.preset, **dict(local.options)}
        self._decay = float(options.pop("weight_decay", 0.0))
        self._decoupled = kind.decoupled
        if self._decoupled:
            options["weight_decay"] = 0.0
        self._start = list(start)
        self.moved = [torch.zeros_like(value) for value in start]
        rate = self._rate = local.learning_rate
        try:
            self._optimizer = getattr(torch.optim, kind.home)(self.moved, lr=rate, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"inner optimizer {local.optimizer!r}: {error}") from error

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Take one step, and write the new weights into ``weights``.

        Args:
            gradients: the gradients at ``weights``.
        """
        for moved, gradient, weight in zip(self.moved, gradients, weights, strict=True):
            slope = gradient
            if self._decay and self._decoupled:
                moved.add_(weight, alpha=-float(self._rate or 0.0) * self._decay)
            elif self._decay:
                slope = slope.add(weight, alpha=self._decay)
            moved.grad = slope
        self._optimizer.step()
        for moved, start, weight in zip(self.moved, self._start, weights, strict=True):
            moved.grad = None
            torch.add(start, moved, out=weight)


# Networks without user code: torch's own layers, each of which works on every row by itself.


# Layers without state or branches, which do not mix rows and have torch's own batching rules.
LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten),
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d),
)


def separable(model: nn.Module, loss: Loss) -> bool:
    """True if all parts of the network and the loss are known to work on every row by itself."""
    modules = list(model.named_modules())
    try:
        vmap_mode.hooked(modules)
    except Refused:
        return False
    known = all(
        type(module) in LAYERS
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
        for _, module in modules
    )
    hooks = boundary.interrupted() or boundary.global_hooks()
    return known and not hooks and declared_separable(loss)


# The isolation of one group's algorithm: it runs on the model itself, which is restored afterwards.
#
# A group's update may depend only on the round's weights, its own records and its own random
# numbers. So before each group everything that Python can reach from model, loss and algorithm is
# as at the beginning of the round: parameters, buffers, attributes, closures, globals, generators.


Work = Callable[[AbstractContextManager[Any]], Mapping[str, Tensor]]


class Bare:
    """The isolation for a model without user code (:data:`LAYERS`): only its weights can change.

    Args:
        model: the model whose trainable parameters are updated.

    Attributes:
        trained: name → trainable parameter.
        start: name → its value at the beginning of the round.
        joined: the :class:`Joined` of the parameters. first: the values at the beginning of the
            round, joined.
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
        with self._weights_restored():
            return dict(work(nullcontext()))

    @contextmanager
    def _weights_restored(self) -> Iterator[None]:
        """A context that restores weights and gradients at its end."""
        kept = {name: p.grad for name, p in self.trained.items()}
        try:
            yield
        finally:
            for name, parameter in self.trained.items():
                parameter.grad = kept[name]
                parameter.data.copy_(self.start[name])


class Enclosure(Bare):
    """The isolation for a model with user code: it restores all that the code can reach.

    Args:
        model: the model whose trainable parameters are updated.
        roots: further objects in which user code can keep values: the loss, the algorithm.

    Raises:
        ValueError: hooks that see several groups, or an object that cannot be restored.
    """

    @turns
    def __init__(self, model: nn.Module, *roots: object) -> None:
        super().__init__(model)
        modules = list(model.named_modules())
        try:
            boundary.require_bare_torch()
            vmap_mode.hooked(modules)
            self._surroundings = ExternalState([m for _, m in modules], model, *roots)
        except Refused as reason:
            raise ValueError(str(reason)) from None
        self._state = ModuleState(modules)
        self._alone = Alone(model, True)

    @turns
    def run(self, work: Work, seed: int) -> dict[str, Tensor]:
        """One group's update.

        Args:
            work: the algorithm; it must run user code inside the context that it is given.
            seed: of torch's generators.

        Raises:
            ValueError: the model cannot be trained privately, writes to parameters in its forward
                pass, or user code keeps values of the group.
        """
        seeded(seed)
        alone = self._alone.again()
        try:
            with self._weights_restored():
                # In a copy of the context, so that changes of context variables end with it.
                found = contextvars.copy_context().run(work, alone)
                update = {name: value.detach().clone() for name, value in found.items()}
                del found
                written = self._state.parameters_changed()
        except Refused as reason:
            module = vmap_mode.module_at_fault(self.model, reason)
            raise ValueError(f"{module}: {reason}") from None
        finally:
            self._surroundings.restore()
            with torch.no_grad():
                self._state.restore()
        if written:
            raise ValueError(
                f"the model changes itself while it runs: {', '.join(written[:5])} is written to "
                "in the forward pass; compute a new tensor instead"
            )
        if alone.kept():
            raise ValueError(
                "the model, loss or algorithm keeps values of a group where they cannot be "
                "put back: keep nothing between groups"
            )
        return update


# Groups one after another: each group's algorithm runs on the model itself, isolated as above.


Mode = AbstractContextManager[Any]


class OneByOne:
    """Computes updates of groups by ordinary passes.

    Args:
        model: at the round's weights. loss: one value for each record. local: the algorithm.
        held: records whose activations are held at once; a longer step adds up pieces. None: all.

    Raises:
        ValueError: an algorithm that cannot be loaded, or a model that cannot be restored.
    """

    def __init__(self, model: nn.Module, loss: Loss, local: Local, held: int | None = None) -> None:
        self._function = None if local.function is None else imported(local.function)
        self._loss, self._local, self._held = loss, local, held
        bare = self._function is None and separable(model, loss)
        self._enclosure = Bare(model) if bare else Enclosure(model, loss, self._function)
        self._weights = [torch.empty_like(value) for value in self._enclosure.first]
        self._pieces = self._enclosure.joined.part(self._weights)

    def update(self, inputs: Any, targets: Any, seed: int) -> dict[str, Tensor]:
        """Name → weight change by a group's records; not finite if training overflowed.

        Args:
            inputs, targets: the group's records, batch first.
            seed: of the order of records and of torch's generators.

        Raises:
            ValueError: the user's function returns something else than a weight change.
        """
        size = batches.batch_size(inputs, targets)

        def work(alone: Mode) -> Mapping[str, Tensor]:
            if self._function is not None:
                return self._own(self._function, alone, inputs, targets)
            return self._descend(alone, inputs, targets, size, seed)

        return self._enclosure.run(work, seed)

    def _descend(
        self, alone: Mode, inputs: Any, targets: Any, size: int, seed: int
    ) -> dict[str, Tensor]:
        trained, joined, weights = self._enclosure.trained, self._enclosure.joined, self._weights
        parameters = list(trained.values())
        for weight, value in zip(weights, self._enclosure.first, strict=True):
            weight.copy_(value)
        taken, data = Displacement(self._local, self._enclosure.first), (inputs, targets)
        for number, order in enumerate(steps(size, self._local, seed)):
            if number:  # the first step finds the round's weights in the model
                for parameter, weight in zip(parameters, self._pieces, strict=True):
                    parameter.data.copy_(weight)
            for parameter in parameters:
                parameter.grad = None
            some, wanted = data if order is None else batches.mapped(data, itemgetter(order))
            self._backward(alone, some, wanted, size if order is None else len(order))
            taken.step(joined.join([_slope(p) for p in parameters]), weights)
        return dict(zip(trained, joined.part(taken.moved), strict=True))

    def _backward(self, alone: Mode, inputs: Any, targets: Any, size: int) -> None:
        piece = self._held or size
        for start in range(0, size, piece):
            count = min(piece, size - start)
            part = itemgetter(slice(start, start + count))
            some, wanted = batches.mapped((inputs, targets), part)
            with torch.enable_grad(), alone:
                values = self._loss(batches.call(self._enclosure.model, some), wanted)
                value = batches.own_losses(values, count).mean()
                if count < size:
                    value = value * (count / size)
                if value.requires_grad:
                    value.backward()  # type: ignore[no-untyped-call]

    def _own(
        self, function: Callable[..., Any], alone: Mode, inputs: Any, targets: Any
    ) -> dict[str, Tensor]:
        with torch.enable_grad(), alone:
            # A copy, so that the function may train it in place.
            found = function(copy.deepcopy(self._enclosure.model), (inputs, targets))
        return _checked(found, self._enclosure.trained)


def _slope(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter) if gradient is None else gradient.detach().to_dense()


def steps(size: int, local: Local, seed: int) -> Iterator[Tensor | None]:
    """The places of the records in each inner step, with a new random order for each pass.

    None stands for all records in their own order.
    """
    if local.step is None or local.step >= size:
        yield from (None for _ in range(local.passes))
        return
    generator = torch.Generator().manual_seed(seed)
    for _ in range(local.passes):
        yield from torch.randperm(size, generator=generator).split(local.step)  # type: ignore[no-untyped-call]


def _checked(found: Any, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not isinstance(found, Mapping):
        raise ValueError(
            "the function of local must return the weight change as a mapping from parameter "
            f"name to tensor, not {type(found).__name__}"
        )
    wrong = sorted(found.keys() ^ trained.keys())
    if wrong:
        raise ValueError(
            "the function of local must return a weight change for each trainable parameter and "
            f"nothing else: look at {', '.join(map(repr, wrong[:5]))}"
        )
    for name, parameter in trained.items():
        value = found[name]
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"the function of local returned {shape} for {name!r}, whose shape is "
                f"{tuple(parameter.shape)}"
            )
    return {name: found[name].to(p.device, p.dtype) for name, p in trained.items()}


# Groups side by side: one vmap over stacked weights computes an inner step of all groups.
#
# This is done only for networks of torch's own layers that work on every row by itself, with losses
# that are declared separable; all others run one group after another. A group's numbers do not
# depend on other groups: each step has ``step`` places for every group size, empty places hold
# zeros and do not count, and a group that has taken its steps does not change any more.


# On a CPU, one call for all groups is faster only if a step's arithmetic is small beside the cost
# of calling torch.
SHORT_STEP, SHORT_CONVOLVED_STEP, FEWEST = 16, 4, 4
# Bytes of stacked weights, gradients and optimizer state held at once.
_STACKED_BYTES = 2**28
_COPIES = 5


def side_by_side(model: nn.Module, loss: Loss, local: Local, count: int) -> bool:
    """True if groups run side by side; the answer does not depend on the records.

    Args:
        count: number of groups of the round.
    """
    if local.function is not None or local.step is None or count < FEWEST:
        return False
    if not separable(model, loss):
        return False
    if next(model.parameters()).device.type != "cpu":
        return True
    convolved = any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in model.modules())
    return local.step <= (SHORT_CONVOLVED_STEP if convolved else SHORT_STEP)


class SideBySide:
    """Computes updates of several groups together.

    Args:
        model: a model of :data:`LAYERS`, at the round's weights; it is not changed.
        loss: one value for each record. local: an algorithm with a ``step``.
        held: records whose activations are held at once. None: as many as :data:`_STACKED_BYTES` of
            stacked weights allow.

    Attributes:
        lanes: the most groups of one call of :meth:`updates`.
    """

    def __init__(self, model: nn.Module, loss: Loss, local: Local, held: int | None = None) -> None:
        self._model, self._loss, self._local = model, loss, local
        self._trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
        self._rest = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        size = sum(p.numel() * p.element_size() for p in self._trained.values())
        most = max(1, _STACKED_BYTES // (_COPIES * max(1, size)))
        step = local.step or 1
        self.lanes = most if held is None else max(1, min(most, held // step))
        self._slope = vmap(grad(self._mean), in_dims=(0, 0, 0, 0), randomness="different")

    def _mean(self, weights: dict[str, Tensor], rows: Tensor, wanted: Tensor, here: Tensor) -> Any:
        outputs = functional_call(self._model, {**weights, **self._rest}, (rows,))
        values = self._loss(outputs, wanted)
        # Selected, not multiplied by 0: the loss of an empty place may be infinite or NaN.
        return torch.where(here, values, 0.0).sum() / here.sum().clamp(min=1)

    @turns
    def updates(
        self, inputs: Tensor, targets: Tensor, groups: Sequence[Tensor], seeds: Sequence[int]
    ) -> dict[str, Tensor]:
        """Name → weight changes, shape (groups, *parameter shape).

        Args:
            inputs, targets: all records, in dimension 0.
            groups: the records of each group, at most :attr:`lanes` groups.
            seeds: one for each group.
        """
        lanes, places = len(groups), self._local.step or 1
        taken: list[list[Tensor]] = []
        for at, seed in zip(groups, seeds, strict=True):
            orders = steps(len(at), self._local, seed) if len(at) else ()
            taken.append([at if order is None else at[order] for order in orders])
        seeded(seeds[0])  # for dropout, which draws for every lane in every step
        start = [value.expand(lanes, *value.shape) for value in self._trained.values()]
        weights = [value.clone() for value in start]
        taking = Displacement(self._local, start)
        kept = [moved.clone() for moved in taking.moved]
        for turn in range(max(map(len, taken))):
            at = torch.full((lanes, places), -1, dtype=torch.int64)
            for lane, own in enumerate(taken):
                if turn < len(own):
                    at[lane, : len(own[turn])] = own[turn]
            here = (at >= 0).to(inputs.device)
            rows, wanted = (_placed(leaf, at, here) for leaf in (inputs, targets))
            named = dict(zip(self._trained, weights, strict=True))
            slopes = self._slope(named, rows, wanted, here)
            taking.step([slopes[name] for name in self._trained], weights)
            active = here.any(1)
            for place, moved in enumerate(taking.moved):
                chosen = active.view(-1, *(1,) * (moved.dim() - 1))
                kept[place] = torch.where(chosen, moved, kept[place])
        return dict(zip(self._trained, kept, strict=True))


def _placed(leaf: Tensor, at: Tensor, here: Tensor) -> Tensor:
    picked = leaf[at.clamp(min=0).to(leaf.device)]
    shape = (*here.shape, *(1,) * (picked.dim() - 2))
    return torch.where(here.view(shape), picked, torch.zeros((), dtype=leaf.dtype))

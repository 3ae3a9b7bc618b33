"""Watching a pass: every torch function that uses a trained parameter is caught as it is called.

Where a rule covers the call, it runs with its parameters detached, so autograd computes no weight
gradient for it, and a tap on its output reports the output's gradient. Everything else runs
untouched, and whatever parameters it used show up as ordinary gradients afterwards: nothing can
be missed. Neither the model nor its parameters are changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forethought.gradients.place import Slot, slot
from forethought.gradients.registry import PARTS, RULES, Rule
from forethought.gradients.trees import tensors

# Random functions: a second pass would draw other numbers.
DROPOUTS = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        F.scaled_dot_product_attention,
    }
)
DRAWS = frozenset(
    {
        torch.rand,
        torch.randn,
        torch.rand_like,
        torch.randn_like,
        torch.randint,
        torch.randint_like,
        torch.randperm,
        torch.normal,
        torch.bernoulli,
        torch.multinomial,
        torch.Tensor.bernoulli,
        torch.Tensor.bernoulli_,
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        torch.Tensor.exponential_,
        torch.Tensor.multinomial,
        F.gumbel_softmax,
        F.rrelu,
        torch.rrelu,
    }
)


def drops(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a dropout function draws random numbers."""
    if func is F.scaled_dot_product_attention:
        return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    if func in DROPOUTS:
        chance = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", args[2] if len(args) > 2 else True)
        return bool(chance and training)
    return False


@dataclass(frozen=True)
class Site:
    """One call that a rule covers.

    ``arguments`` are the call's own, by name; ``args`` and ``kwargs`` have the parameters detached.
    ``key`` identifies the call from one pass to the next: the rule, the parameters, and the number
    of calls with the same ones so far.
    """

    rule: Rule
    slots: Mapping[str, Slot]
    arguments: Mapping[str, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    key: tuple[Any, ...]

    def report(self) -> Site:
        """What the way back needs of the call.

        It lives as long as the graph does, so inputs must not: those that the rule saves are
        kept by autograd, which frees them layer by layer.
        """
        named = {*self.rule.saved, *self.rule.parameters}
        rest = {
            name: value
            for name, value in self.arguments.items()
            if name not in named or not isinstance(value, Tensor)
        }
        return Site(self.rule, self.slots, rest, (), {}, self.parameters, self.key)


Report = Callable[[Site, Mapping[str, Tensor], Tensor], None]


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        anchor: Tensor,
        report: Report,
        site: Site,
        names: tuple[str, ...],
        *saved: Tensor,
    ) -> Tensor:
        # Saving through autograd keeps checkpointing, offloading and the check for in-place
        # changes working. The result shares memory with the output but is no view of it, so that
        # in-place activations may follow.
        ctx.save_for_backward(*saved)
        ctx.report, ctx.site, ctx.names = report, site, names
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        saved = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        with torch._C.DisableTorchFunction():  # the rules' own arithmetic is not watched
            ctx.report(ctx.site, saved, gradient.detach())
        return gradient, *(None,) * (4 + len(ctx.names))


# These also hand themselves over, and a checkpointed block runs again inside them.
BACKWARDS = frozenset({torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward})


def _hooked() -> bool:
    """Whether hooks on saved tensors are in force; taken to be where torch cannot tell."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


_PLAIN: set[Any] = set()  # functions seen to need nothing; there are a few hundred
_PACKING = frozenset({torch.Tensor.index_select, torch._VF._pack_padded_sequence})


@cache
def opened(function: FunctionType) -> FunctionType:
    """A copy of a Python function that does not hand itself over to the mode as a whole.

    The functions inside it are then caught one by one.
    """

    def never(*_: Any) -> bool:
        return False

    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**function.__globals__, **dict.fromkeys(asked, never)}
    copy = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class Watch(TorchFunctionMode):
    """Taps every ruled call while active; ``report`` is called during the backward pass.

    Args:
        parameters: id of a trained parameter → its name.
        skip: names of parameters that are left to autograd.
        report: receives the site, its saved tensors and the gradient of its output.

    Attributes:
        anchor: the leaf that every tapped call hangs on; differentiate with respect to it.
        random: whether the pass drew random numbers.
        hidden: whether parameters were used where no graph is recorded, as reentrant
            checkpointing does.
        repeats: whether parts of the pass may run again on the way back (checkpointing), where
            they must be watched too.
    """

    def __init__(self, parameters: dict[int, str], skip: frozenset[str], report: Report) -> None:
        super().__init__()
        self.anchor = torch.zeros(0, requires_grad=True)
        self.random = False
        self.hidden = False
        self.repeats = False
        self.report = report
        self._parameters, self._skip = parameters, skip
        self._sorted: tuple[Tensor, Tensor] | None = None
        self._packings: list[tuple[Tensor, Tensor]] = []
        self._seen: Counter[tuple[Any, ...]] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is not None:
            site = self._site(rule, args, kwargs)
            if site is not None:
                if rule.run is not None:
                    return rule.run(func, site, self)
                return self.tap(func(*site.args, **site.kwargs), site, site.arguments)
            return func(*args, **kwargs)
        if func in PARTS:
            if torch.is_grad_enabled() and self._trains((*args, *kwargs.values())):
                with self:
                    return PARTS[func](self, *args, **kwargs)
        elif func in _PLAIN:
            return func(*args, **kwargs)
        elif func in BACKWARDS:
            with self:
                return opened(func)(*args, **kwargs)
        elif func in DRAWS or func in DROPOUTS:
            self.random = self.random or func in DRAWS or drops(func, args, kwargs)
        elif func in _PACKING:
            result = func(*args, **kwargs)
            self._follow_packing(func, args, result)
            return result
        elif isinstance(func, FunctionType) and func.__globals__ is vars(F):
            if self._trains((*args, *kwargs.values())):
                with self:
                    return opened(func)(*args, **kwargs)
        else:
            _PLAIN.add(func)
        return func(*args, **kwargs)

    def _trains(self, values: Iterable[Any]) -> bool:
        return any(slot(leaf, self._parameters) is not None for leaf in tensors([*values]))

    def _follow_packing(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        # pack_padded_sequence sorts the examples by length; only these two calls show how.
        if func is torch.Tensor.index_select:
            self._sorted = (result, args[2])
        elif func is torch._VF._pack_padded_sequence and self._sorted is not None:
            value, order = self._sorted
            if value is args[0]:
                self._packings.append((result[1], order))

    def packing_order(self, sizes: Tensor) -> Tensor | None:
        """The example at each place of a packed sequence, known by its tensor of batch sizes."""
        return next((order for known, order in self._packings if known is sizes), None)

    def _site(self, rule: Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Site | None:
        arguments = rule.bind(args, kwargs)
        if arguments is None:
            return None
        slots = {}
        for role, value in self._candidates(rule, arguments):
            found = slot(value, self._parameters)
            if found is not None:
                slots[role] = found
        if not slots:
            return None
        if not torch.is_grad_enabled():
            self.hidden = self.repeats = True
            return None
        # Without reentrance, checkpointing works through hooks on saved tensors.
        self.repeats = self.repeats or _hooked()
        if not rule.accepts(arguments, slots):
            return None
        mark = (rule.name, *slots.items())
        self._seen[mark] += 1
        if self._skip:
            slots = {role: found for role, found in slots.items() if found.name not in self._skip}
            if not slots:
                return None
        parameters = {role: arguments[role].detach() for role in slots}
        detached = {id(arguments[role]): value for role, value in parameters.items()}
        return Site(
            rule,
            slots,
            arguments,
            tuple(detached.get(id(value), value) for value in args),
            {name: detached.get(id(value), value) for name, value in kwargs.items()},
            parameters,
            (*mark, self._seen[mark]),
        )

    def _candidates(self, rule: Rule, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
        for role in rule.parameters:
            value = arguments.get(role)
            if isinstance(value, Tensor):
                yield role, value

    def tap(self, output: Tensor, site: Site, values: Mapping[str, Any]) -> Tensor:
        """The same output, reporting its gradient and the values that the rule saves."""
        names = tuple(
            name
            for name in site.rule.saved
            if name not in site.slots and isinstance(values.get(name), Tensor)
        )
        saved = [values[name].detach() for name in names]
        tapped: Tensor = _Tap.apply(  # type: ignore[no-untyped-call]
            output, self.anchor, self.report, site.report(), names, *saved
        )
        return tapped

"""Lanes: every example's forward pass in a place of its own, all of them at the speed of one batch.

Model and loss run on lane tensors (:mod:`.boundary`): to Python they are one example (a batch of
one), and vmap keeps the examples apart whatever the model does. This mode sees every torch
function on the way in. Where a trained parameter meets examples, the parameter is detached and the
call's output (or the parameter, written out for each example) is tapped, so that no gradient
reaches a parameter but through a report that has one row an example.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forethought.gradients.boundary import (
    OPERATORS,
    current_level,
    dispatched,
    is_lane,
    lane,
    outside,
    physical,
)
from forethought.gradients.calls import (
    DROPOUTS,
    FRESH,
    UNSET,
    changes,
    opened,
    own_operator,
    writes,
)
from forethought.gradients.control import Parted, Refused, RuleFailed, Stopped, Unable, Unshared
from forethought.gradients.derived import Place, Places
from forethought.gradients.draws import Draws, fork
from forethought.gradients.registry import PARTS, PHYSICAL, RULES, Rule, Use
from forethought.gradients.tap import Rows, Site, Tap
from forethought.gradients.terms import Dense, Outer, Term
from forethought.gradients.watching import WATCH

Handler = Callable[["Lanes", Any, tuple[Any, ...], dict[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}
"""Functions that are more than arithmetic on examples; may answer ``NotImplemented``."""
ALWAYS: dict[Any, Handler] = {}
"""The same, also where no argument belongs to a lane."""

Observer = Callable[[Place, str, Term], None]


def handles(*functions: Any, always: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for calls of ``functions``; ``always``: whatever their arguments."""

    def register(handler: Handler) -> Handler:
        (ALWAYS if always else HANDLERS).update(dict.fromkeys(functions, handler))
        return handler

    return register


# These hand themselves over whole, with functions inside that must be caught one by one.
OPEN: set[Any] = {F.multi_head_attention_forward}


@dataclass(frozen=True)
class Settings:
    """How a pass is run; a pass that stops may be run again with others.

    Attributes:
        unshared: tensors that the model makes are made for each lane, and inputs are copied,
            since it writes to them. without: names of rules
            that are not to be used. grouped: a lane is a group, whose examples may see each other.
    """

    unshared: bool = False
    grouped: bool = False
    without: frozenset[str] = frozenset()


class Lanes(TorchFunctionMode):
    """The pass of ``size`` lanes at vmap's ``level``.

    Args:
        places: what the trained tensors are.
        draws: for lanes of a batch that runs apart; None where all are here.
        observe: is told of every use before it is decided how to keep it.
        before_answer: is called before a value of the examples reaches Python.

    Attributes:
        anchor: the leaf that every report hangs on; differentiate with respect to it.
        uses: what was reported. failed: the first rule that failed on the way back.
    """

    def __init__(
        self,
        size: int,
        level: int,
        places: Places,
        settings: Settings,
        draws: Draws | None = None,
        observe: Observer | None = None,
        before_answer: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._before_answer = before_answer
        self.size, self.level, self.settings = size, level, settings
        self.anchor = torch.zeros(0, requires_grad=True)
        self.places = places
        self.draws = draws
        self.uses: list[tuple[Place, Term]] = []
        self.failed: RuleFailed | None = None
        self.stopped: Stopped | None = None
        self._observe = observe
        self._watch = WATCH.get()
        self._times: Counter[Place] = Counter()
        self._kept: list[weakref.ref[Tensor]] = []
        self.inputs: set[int] = set()  # storages of the caller's tensors
        self.parameters: set[int] = set()  # and of the model's parameters

    # What is intercepted

    def __torch_function__(  # noqa: C901
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if dispatched():
            raise Unable("a TorchDispatchMode of the model's, which sees all examples at once")
        mixed = trained = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                if is_lane(value):
                    mixed = True
                elif value.requires_grad:
                    trained = True
            elif isinstance(value, list | tuple):
                for leaf in value:
                    if isinstance(leaf, Tensor):
                        if is_lane(leaf):
                            mixed = True
                        elif leaf.requires_grad:
                            trained = True
        try:
            if mixed:
                result = self._with_examples(func, args, kwargs, trained)
            else:
                result = self._without(func, args, kwargs, trained)
        except Stopped as reason:
            self.stopped = reason
            raise
        if isinstance(result, Tensor):
            if is_lane(result):
                self._took(result, func not in UNSET)
        elif isinstance(result, list | tuple):
            for leaf in result:
                if isinstance(leaf, Tensor) and is_lane(leaf):
                    self._took(leaf)
        return result

    def _took(self, value: Tensor, written: bool = True) -> None:
        self._kept.append(weakref.ref(value))
        if self._watch is not None and written and current_level() == self.level:
            whole, dim = physical(value)
            with outside():
                self._watch.see(whole, dim)

    def followed(self, value: Tensor) -> Tensor:
        """A lane tensor that nobody may keep when the pass is over."""
        self._kept.append(weakref.ref(value))
        return value

    def _with_examples(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool
    ) -> Any:
        if type(func) in OPERATORS and own_operator(func):
            raise Unable(f"{func} is an operator of the model's own")
        handler = HANDLERS.get(func) or ALWAYS.get(func)
        if handler is not None:
            result = handler(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if trained and torch.is_grad_enabled():
            self.here()
            rule = RULES.get(func)
            if rule is not None and rule.name not in self.settings.without:
                result = self._ruled(rule, func, args, kwargs)
                if result is not NotImplemented:
                    return result
            if func not in PARTS and not self._opens(func):
                args, kwargs = self._written_out(func, args, kwargs)
        parts = PARTS.get(func)
        if parts is not None:
            with self:
                return parts(self, *args, **kwargs)
        if func in OPEN or (trained and func not in PHYSICAL and self._opens(func)):
            with self:
                return opened(func)(*args, **kwargs)
        return self.call(func, args, kwargs)

    def _opens(self, func: Any) -> bool:
        return isinstance(func, FunctionType) and func.__globals__ is vars(F)

    def _without(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool
    ) -> Any:
        handler = ALWAYS.get(func)
        if handler is not None:
            result = handler(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if trained and torch.is_grad_enabled():
            if func in DROPOUTS:  # another draw for every lane
                args, kwargs = self._written_out(func, args, kwargs)
                return self.call(func, args, kwargs)
            looked_up = self.places.look_up(func, args, kwargs)
            if looked_up is not None:
                return looked_up
        result = self.call(func, args, kwargs)
        fresh = self.settings.unshared and func in FRESH and not trained
        if fresh and isinstance(result, Tensor) and not is_lane(result):
            with outside():
                result = result.expand(self.size, *result.shape).clone()
            return lane(result, 0, self.level)
        return result

    def call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function itself, under vmap."""
        if changes(func, args, kwargs):
            self._check_target(kwargs.get("out", args[0] if args else None))
        run = PHYSICAL.get(func)
        if run is not None and self._any_lane(args):
            self.here()
            result = run(self, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        try:
            if self.draws is not None:
                return self.draws.call(self.level, func, args, kwargs)
            return func(*args, **kwargs)
        except RuntimeError as error:
            target = kwargs.get("out", args[0] if args else None)
            if not writes(func, kwargs) or not isinstance(target, Tensor) or is_lane(target):
                raise
            if not self.settings.unshared:
                raise Unshared from error
            raise Refused(
                "values of the examples are written into a tensor that is not theirs (a buffer, a "
                "parameter, or one kept from elsewhere): compute a new tensor instead"
            ) from error

    def _any_lane(self, values: tuple[Any, ...]) -> bool:
        return any(isinstance(value, Tensor) and is_lane(value) for value in values)

    def _check_target(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            return
        whole = physical(value)[0] if is_lane(value) else value
        place = whole.untyped_storage().data_ptr()
        if place in self.inputs:
            raise Unshared
        if place in self.parameters:
            raise Refused("a parameter is written to in the forward pass: compute a new tensor")

    def here(self) -> None:
        """Stop inside a transform of the model's own, where the examples are at another level."""
        if current_level() != self.level:
            raise Unable("the model uses torch.func inside")

    # Where parameters meet examples

    def _ruled(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = rule.bind(args, kwargs)
        if arguments is None:
            return NotImplemented
        trained: dict[str, Tensor] = {}
        parameters: dict[str, Tensor] = {}
        for role in rule.parameters:
            value = arguments.get(role)
            if not isinstance(value, Tensor):
                continue
            if is_lane(value):
                if role not in rule.saved:
                    return NotImplemented
                continue
            parameters[role] = value.detach()
            if value.requires_grad:
                trained[role] = value
        if not trained or not rule.accepts(arguments, trained):
            return NotImplemented
        swapped = {id(value): parameters[role] for role, value in trained.items()}
        for name, value in arguments.items():
            shared = isinstance(value, Tensor) and value.requires_grad and not is_lane(value)
            if shared and name not in parameters:
                swapped[id(value)] = arguments[name] = self.rows_of(value)
        output = self.call(
            func,
            tuple([swapped.get(id(value), value) for value in args]),
            {name: swapped.get(id(value), value) for name, value in kwargs.items()},
        )
        return self.tap(output, rule, trained, parameters, arguments)

    def tap(
        self,
        output: Tensor,
        rule: Rule,
        trained: dict[str, Tensor],
        parameters: dict[str, Tensor],
        arguments: Mapping[str, Any],
    ) -> Tensor:
        """The same output; on the way back its gradient is reported to the rule."""
        whole, dim = physical(output)
        names, values = [], []
        dims: list[int | None] = [dim]
        for name in rule.saved:
            value = arguments.get(name)
            if name not in trained and isinstance(value, Tensor):
                at: int | None = None
                if is_lane(value):
                    value, at = physical(value)
                names.append(name)
                values.append(value.detach())
                dims.append(at)
        rest = {
            name: value
            for name, value in arguments.items()
            if not isinstance(value, Tensor)
            or not (name in parameters or name in rule.saved or is_lane(value))
        }
        site = Site(rule, trained, rest, parameters, tuple(names), tuple(dims), self.size)
        self.count(trained)
        with outside():
            tapped = Tap.apply(whole, self.anchor, self.report, site, *values)  # type: ignore[no-untyped-call]
        return lane(tapped, dim, self.level)

    def _written_out(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # What is written to stays: vmap refuses to write examples into a shared tensor.
        kept = args[0] if args and writes(func, kwargs) else None

        def change(value: Any) -> Any:
            if isinstance(value, Tensor):
                if value.requires_grad and value is not kept and not is_lane(value):
                    return self.rows_of(value)
            elif type(value) in (list, tuple):
                return type(value)(change(leaf) for leaf in value)
            return value

        return tuple(map(change, args)), {name: change(v) for name, v in kwargs.items()}

    def rows_of(self, value: Tensor) -> Tensor:
        """A lane tensor of a shared value; the value's gradient is written out for each lane."""
        place = self.places.of(value)

        def report(gradient: Tensor) -> None:
            self._add(place, "any function", Dense(gradient))

        with outside():
            whole = Rows.apply(value.detach(), self.anchor, self.size, report)  # type: ignore[no-untyped-call]
        return lane(whole, 0, self.level)

    def count(self, trained: Mapping[str, Tensor]) -> None:
        """A use of these was seen; its report will follow."""
        for value in trained.values():
            self._times[self.places.of(value)] += 1

    def report(self, site: Site, use: Use) -> None:
        """A use's output gradient is known: keep the terms that the rule makes of it."""
        try:
            terms = dict(_terms_of(site, use))
        except Exception as error:  # whatever an outsider's rule raises
            self.failed = self.failed or RuleFailed(site.rule.name, error)
            return
        for role, term in terms.items():
            self._add(self.places.of(site.trained[role]), site.rule.name, term)

    def _add(self, place: Place, rule: str, term: Term) -> None:
        if self._observe is not None:
            self._observe(place, rule, term)
        # Linear uses of one weight are joined before it is decided how to keep them.
        joined = isinstance(term, Outer) and self._times[place] > 1
        self.uses.append((place, term if joined else term.settled()))

    # What Python sees of the examples

    def decide(self, keys: Sequence[Hashable]) -> None:
        """Go on if every lane has the same key; otherwise the lanes part.

        Raises:
            Parted: they disagree.
        """
        first = keys[0]
        self._before_answer()
        if any(key != first for key in keys):
            raise Parted(keys)
        fork(first)

    def remaining(self) -> list[Tensor]:
        """Lane tensors that somebody still holds."""
        return [value for value in (kept() for kept in self._kept) if value is not None]


def _terms_of(site: Site, use: Use) -> list[tuple[str, Term]]:
    given = [(role, term) for role, term in site.rule.gradients(use) if role in site.trained]
    if len(given) != len(site.trained) or {role for role, _ in given} != site.trained.keys():
        raise ValueError(
            f"it must yield each of {sorted(site.trained)} once, not {[role for role, _ in given]}"
        )
    for role, term in given:
        shape = tuple(site.trained[role].shape)
        if isinstance(term, Dense) and tuple(term.values.shape) != (site.size, *shape):
            raise ValueError(
                f"the gradients of {role!r} must have the shape {(site.size, *shape)}, not "
                f"{tuple(term.values.shape)}"
            )
        if isinstance(term, Outer) and term.shape != shape:
            raise ValueError(
                f"the gradients of {role!r} must have the shape {shape}, not {term.shape}"
            )
    return given

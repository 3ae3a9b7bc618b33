"""The first look at a model: where the batch is in every call, and proof that the rules hold.

Before book-keeping is trusted with a model and a kind of input, it runs on three of the examples:
forwards in one order, then two of them in another, which shows the layout of every tensor
(:mod:`.layout`); then its per-example gradients are compared with autograd, one example at a
time. A parameter whose gradients differ, or whose layout cannot be told, is left to the fallback.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from forethought.gradients import fallback, trees
from forethought.gradients.capture import BACKWARDS, DRAWS, Site, Watch, drops, opened
from forethought.gradients.layout import Layout, find
from forethought.gradients.place import Slot, combine
from forethought.gradients.registry import RULES, Frames, Use
from forethought.gradients.terms import Term

Loss = Callable[[Any, Any], Tensor]


@dataclass
class Survey:
    """What is known of a model under one kind of input.

    Attributes:
        frames: call → layouts of its tensors.
        unruled: parameter → why it is left to the fallback.
        uses: how often a pass uses each slot.
        certain: whether it may be kept: False when the examples did not tell enough.
        failure: why there was no survey, if there was none.
    """

    frames: dict[tuple[Any, ...], Frames] = field(default_factory=dict)
    unruled: dict[str, str] = field(default_factory=dict)
    uses: Counter[Slot] = field(default_factory=Counter)
    certain: bool = True
    failure: str = ""


@dataclass(frozen=True)
class _Event:
    site: Site
    saved: Mapping[str, Tensor]
    gradient: Tensor


# The only number with a fraction among their arguments is the chance of dropout.
_LAYERS_WITH_DROPOUT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})


class _Quiet(TorchFunctionMode):
    """Dropout keeps everything and random draws are constant, so that passes can be compared."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if drops(func, args, kwargs):
            if func is not nn.functional.scaled_dot_product_attention:
                return args[0] if args else kwargs["input"]
            args, kwargs = (*args[:4], *args[5:]), {**kwargs, "dropout_p": 0.0}
            kwargs.update(zip(("is_causal", "scale"), args[4:], strict=False))
            args = args[:4]
        if func in BACKWARDS or func is nn.functional.multi_head_attention_forward:
            with self:  # what runs or draws inside
                return opened(func)(*args, **kwargs)
        if func in _LAYERS_WITH_DROPOUT:
            args = tuple(0.0 if isinstance(value, float) else value for value in args)
        result = func(*args, **kwargs)
        if func in DRAWS and isinstance(result, Tensor) and not result.requires_grad:
            result.zero_()
        return result


def use_of(
    site: Site, saved: Mapping[str, Tensor], gradient: Tensor, frames: Frames, batch: int
) -> Use:
    """The use that a rule sees, with the batch in front.

    Raises:
        ValueError: a tensor whose shape does not fit its layout.
    """
    for name, value in (("gradient", gradient), *saved.items()):
        layout = frames.gradient if value is gradient else frames.saved[name]
        if not layout.fits(value, batch):
            raise ValueError(f"{name} of shape {tuple(value.shape)} does not fit {layout}")
    return Use(
        site.arguments,
        site.parameters,
        {name: frames.saved[name].batch_first(value, batch) for name, value in saved.items()},
        frames.gradient.batch_first(gradient, batch),
        frames.gradient.dim,
        frames.gradient.folded,
    )


def terms_of(site: Site, use: Use) -> Iterator[tuple[Slot, Term]]:
    """What the site's rule says, by slot; every trained role exactly once.

    Raises:
        ValueError: the rule left a role out or named one twice.
    """
    # Terms of parameters that are not trained here are dropped.
    given = [(role, term) for role, term in site.rule.gradients(use) if role in site.slots]
    if len(given) != len(site.slots) or {role for role, _ in given} != site.slots.keys():
        raise ValueError(
            f"rule {site.rule.name!r} must yield each of {sorted(site.slots)} once, "
            f"not {[role for role, _ in given]}"
        )
    for role, term in given:
        yield site.slots[role], term


_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Survey]] = WeakKeyDictionary()


def _kind(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return (tree.dtype, tree.dim(), tree.device)
    if isinstance(tree, dict):
        return tuple((key, _kind(value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        return tuple(_kind(value) for value in tree)
    return type(tree)


def signature(model: nn.Module, inputs: Any, targets: Any, trained: Iterable[str]) -> Any:
    """What a survey depends on: kinds of input, training flags, precision, parameters, rules."""
    autocast = tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    )
    flags = tuple([module.training for module in model.modules()])
    rules = tuple(map(id, RULES.values()))
    return (_kind(inputs), _kind(targets), autocast, flags, tuple(trained), rules)


def known(model: nn.Module, kind: Any) -> Survey | None:
    """The survey kept for this model and signature."""
    return _KNOWN.get(model, {}).get(kind)


def keep(model: nn.Module, kind: Any, survey: Survey | None) -> None:
    """Remember a survey, or forget it (None). Nothing is stored on the model itself."""
    kept = _KNOWN.setdefault(model, {})
    kept.pop(kind, None)
    if survey is not None and survey.certain:
        kept[kind] = survey


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Buffers are put back afterwards.

    What a forward pass writes into them comes from private data and carries no noise.
    """
    before = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in before:
                if buffer is not None and value is not None and not _same(buffer, value):
                    buffer.copy_(value)
                module._buffers[name] = buffer


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def survey(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> Survey:
    """Run the model on three examples and find out what book-keeping may rely on."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    size = trees.batch_size(inputs, targets)
    picked = [0, size // 2, size - 1] if size > 2 else [0, size - 1, 0]
    index = torch.tensor(picked)
    cuda = [p.device for p in parameters.values() if p.device.type == "cuda"]
    found = Survey()
    with torch.random.fork_rng(devices=cuda[:1]), undisturbed(model), _Quiet():
        try:
            three, left = _run(model, loss, inputs, targets, index, parameters)
            two, also = _run(model, loss, inputs, targets, index[[2, 1]], parameters)
        except Exception as error:  # the model's own: whatever it is, the fallback will meet it
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            reason = f"a pass over two or three examples failed: {said}"
            return Survey(unruled=dict.fromkeys(parameters, reason), failure=reason)
        for name in left | also:
            found.unruled[name] = "used in an expression that no rule covers"
        _lay_out(found, three, two)
        terms = _terms(found, three, parameters)
        del three, two
        chosen = (trees.select(inputs, index), trees.select(targets, index))
        # One example's gradients at a time: three of everything could be more than a step holds.
        truth = fallback.each(model, loss, *chosen, tuple(parameters))
        finite = [_compare(found, terms, i, row) for i, row in enumerate(truth)]
    found.certain = all(finite)
    if not any(finite):
        for name in parameters:
            found.unruled.setdefault(name, "no finite example to compare the rules with")
    return found


def _run(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    index: Tensor,
    parameters: dict[str, nn.Parameter],
) -> tuple[list[_Event], set[str]]:
    events: list[_Event] = []

    def report(site: Site, saved: Mapping[str, Tensor], gradient: Tensor) -> None:
        events.append(_Event(site, saved, gradient))

    names = {id(parameter): name for name, parameter in parameters.items()}
    watch = Watch(names, frozenset(), report)
    left = differentiate(
        watch,
        model,
        loss,
        trees.select(inputs, index),
        trees.select(targets, index),
        parameters,
    )
    return events, left


def differentiate(
    watch: Watch,
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    parameters: Mapping[str, nn.Parameter],
) -> set[str]:
    """One watched pass forwards and backwards; the names of parameters that no rule covered.

    Every ruled use is detached, so a parameter that still gets a gradient was used elsewhere.
    """
    size = trees.batch_size(inputs, targets)
    with torch.enable_grad():
        with watch:
            values = loss(trees.call(model, inputs), targets)
        # From here on only what runs again needs watching, and watching costs.
        total = trees.losses(values, size).sum()
        if not total.requires_grad:
            return set()
        if not watch.hidden:
            leaves = (watch.anchor, *parameters.values())
            with watch if watch.repeats else nullcontext():
                found = torch.autograd.grad(total, leaves, allow_unused=True)[1:]
            return {n for n, g in zip(parameters, found, strict=True) if g is not None}
        # Reentrant checkpointing cannot be differentiated with respect to chosen leaves.
        kept = {name: parameter.grad for name, parameter in parameters.items()}
        try:
            for parameter in parameters.values():
                parameter.grad = None
            with watch:
                total.backward()  # type: ignore[no-untyped-call]
            return {name for name, p in parameters.items() if p.grad is not None}
        finally:
            for name, parameter in parameters.items():
                parameter.grad = kept[name]


def _tolerance(*tensors: Tensor) -> float:
    width = max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=0.0)
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        width = max(width, torch.finfo(torch.bfloat16).eps)
    # 1e-3 for float32; reduced precision is told apart from another example by far more.
    return max(1e-3, 10 * width)


def _lay_out(found: Survey, three: list[_Event], two: list[_Event]) -> None:
    partners = {event.site.key: event for event in two}
    for event in three:
        other = partners.pop(event.site.key, None)
        names = {place.name for place in event.site.slots.values()}
        frames = None if other is None else _frames(event, other)
        if frames is None:
            for name in names:
                found.unruled.setdefault(
                    name, f"the batch could not be located in a call of {event.site.rule.name}"
                )
        else:
            found.frames[event.site.key] = frames
            found.uses.update(event.site.slots.values())
    for event in partners.values():
        for place in event.site.slots.values():
            found.unruled.setdefault(place.name, "the calls depend on the examples")


def _frames(event: _Event, other: _Event) -> Frames | None:
    tolerance = _tolerance(event.gradient)
    gradient = find(event.gradient, other.gradient, tolerance=tolerance)
    if not gradient:
        return None
    saved: dict[str, Layout] = {}
    for name, value in event.saved.items():
        candidates = find(value, other.saved[name], tolerance=tolerance)
        if not candidates:
            return None
        # The same order of folding as the gradient's, where the values leave a choice.
        orders = {(c.before == 1, c.after == 1): c for c in candidates}
        order = (gradient[0].before == 1, gradient[0].after == 1)
        saved[name] = orders.get(order, candidates[0])
    return Frames(gradient[0], saved)


def _terms(
    found: Survey, events: list[_Event], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Term | None]:
    uses: dict[str, list[tuple[Slot, Term]]] = {name: [] for name in parameters}
    for event in events:
        frames = found.frames.get(event.site.key)
        if frames is None:
            continue
        try:
            use = use_of(event.site, event.saved, event.gradient, frames, 3)
            for place, term in terms_of(event.site, use):
                uses[place.name].append((place, term))
        except (ValueError, RuntimeError, IndexError, KeyError) as error:
            for place in event.site.slots.values():
                found.unruled.setdefault(
                    place.name, f"rule {event.site.rule.name!r} does not fit: {error}"
                )
    terms: dict[str, Term | None] = {}
    for name, of_name in uses.items():
        if name not in found.unruled:
            try:
                terms[name] = combine(of_name) if of_name else None
            except (ValueError, RuntimeError) as error:
                found.unruled[name] = f"the rules of its uses do not fit together: {error}"
    return terms


def _compare(
    found: Survey, terms: dict[str, Term | None], example: int, truth: dict[str, Tensor]
) -> bool:
    """Whether the example was finite; parameters that disagree on it become unruled."""
    if not all(bool(torch.isfinite(expected).all()) for expected in truth.values()):
        return False
    # A parameter that normalisation makes irrelevant has a gradient of rounding errors only, which
    # the largest gradient of the model puts in proportion.
    scale = max(float(expected.abs().max()) for expected in truth.values() if expected.numel())
    for name, expected in truth.items():
        if name in found.unruled or name not in terms:
            continue
        term = terms[name]
        tolerance = _tolerance(expected)
        own = float(expected.abs().max()) if expected.numel() else 0.0
        allowed = max(tolerance * own, 1e-3 * tolerance * scale)
        if term is None:
            if own > allowed:
                found.unruled[name] = "the pass disagrees with autograd: no use was seen"
            continue
        only = torch.zeros(3, dtype=trees.sum_dtype(expected.dtype), device=expected.device)
        only[example] = 1
        try:
            wrong = _largest_error(term, only, example, expected)
        except (ValueError, RuntimeError) as error:
            found.unruled[name] = f"the rule disagrees with autograd: {error}"
            continue
        if not wrong <= allowed:
            found.unruled[name] = "the rule disagrees with autograd"
    return True


def _largest_error(term: Term, only: Tensor, example: int, expected: Tensor) -> float:
    # Of the weighted sum, entry by entry, and of the norm on the scale of one entry.
    term = term.without(only == 0)  # another example may not be finite
    got = term.weighted(only)
    if got.shape != expected.shape:
        raise ValueError(f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    entries = float((got - expected).abs().max()) if expected.numel() else 0.0
    norm = float(term.squared_norms()[example].sqrt())
    truth = float(torch.linalg.vector_norm(expected, dtype=torch.float64))
    return max(entries, abs(norm - truth) / math.sqrt(max(1, expected.numel())))

"""What a clipped sum must be, from one ordinary backward pass an example, and how it may move.

Nothing of the library is used but its public ``clipped_sum``, so these tests hold for any engine.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import math
import random as random_numbers
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drawn import initialised, randn, randperm, reseed, stream
from forethought.gradients import SlowGradientsWarning, clipped_sum

Loss = Callable[[Any, Any], Tensor]


@dataclass
class Case:
    """A model as its users have it.

    Attributes:
        batch: ``batch(examples, longer)`` → (inputs, targets); ``longer`` asks for other lengths
            or sizes where the model takes them.
        loss: one value an example.
        head: prefix of the parameters that the zero-initialised run sets to zero.
        rtol: of norms and sums where ``exact`` is None, relative; elsewhere it is derived.
        exact: of the run in float64; a model that computes in float32 all the same has none.
        around: context in which every clipped sum is taken, such as autocast.
        alone: whether the engine may go one example at a time (a warning then says so).
    """

    model: nn.Module
    batch: Callable[[int, bool], tuple[Any, Any]]
    loss: Loss
    head: str
    rtol: float = 2e-4
    exact: float | None = 1e-7
    alone: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


Make = Callable[[], Case]


def with_torchvision() -> None:
    """Import torchvision; beside a CPU-only torch, without its compiled operators.

    The package on PyPI is built against CUDA. Its networks are plain Python and need none of the
    operators, but importing it declares shapes for two of them, which must then exist.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )
        importlib.import_module("torchvision")


def logits_of(outputs: Any) -> Tensor:
    """The first floating-point tensor of what a model returned."""
    if isinstance(outputs, Tensor):
        return outputs
    if hasattr(outputs, "logits"):
        return outputs.logits
    values = outputs.values() if isinstance(outputs, dict) else outputs
    return next(logits_of(value) for value in values)


def classify(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits_of(outputs), targets, reduction="none")


def spread(outputs: Any, targets: Tensor) -> Tensor:
    """A loss of every number that the model's first output has."""
    flat = logits_of(outputs).reshape(len(targets), -1)
    weights = torch.sin(torch.arange(flat.shape[1], device=flat.device) + 1.0)
    return ((torch.tanh(flat) - targets.unsqueeze(1) * 0.1).square() * (1 + weights)).sum(1)


def call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def rows_of(tree: Any, rows: slice | list[int]) -> Any:
    """Some examples of a batch."""
    if isinstance(tree, Tensor):
        return tree[rows]
    if isinstance(tree, dict):
        return {name: rows_of(value, rows) for name, value in tree.items()}
    return type(tree)(rows_of(value, rows) for value in tree) if isinstance(tree, tuple) else tree


def alone(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, examples: int
) -> Iterator[dict[str, Tensor]]:
    """The gradient of one example after another, each by a fresh copy of the model."""
    for i in range(examples):
        twin = copy.deepcopy(model)
        one = slice(i, i + 1)
        value = loss(call(twin, rows_of(inputs, one)), rows_of(targets, one)).sum()
        if value.requires_grad:
            value.backward()
        yield {
            name: torch.zeros_like(p, dtype=torch.float64) if p.grad is None else p.grad.double()
            for name, p in twin.named_parameters()
            if p.requires_grad
        }


def length(gradient: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradient.values()))


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return length({name: one[name].double() - other[name].double() for name in one})


def size_of(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return len(tree)
    return size_of(next(iter(tree.values() if isinstance(tree, dict) else tree)))


# What a clipped contribution may fall short of C: rounding is charged to the clipping norm.
CHARGED = 0.02


def between(norms: list[float]) -> float:
    """A clipping norm that no norm is near, so that it is plain which are clipped."""
    ranked = sorted(norms)
    gaps = [(high / max(low, 1e-30), low, high) for low, high in itertools.pairwise(ranked)]
    ratio, low, high = max(gaps, default=(1.0, 0.0, 0.0))
    return max(math.sqrt(low * high) if ratio > 1.1 else ranked[0] / 2, 1e-6)


def compare(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    rtol: float = 2e-4,
    wide: bool = False,
) -> list[float]:
    """Assert that the clipped sum and the norms are those of one example at a time.

    Each parameter is held to ``rtol`` of its own gradients, so that a rule which is off by little
    in a small tensor is seen; a hundredth of those of the whole covers what is small in it. Both
    are sums of lengths: what cancels in a sum of contributions loses no digit of a contribution.
    ``wide``: the oracle computes in float64, and ``rtol`` follows from the ordinary pass.
    """
    examples = size_of(targets)
    rows = list(alone(model, loss, inputs, targets, examples))
    if wide:
        twin = copy.deepcopy(model).double()
        exact = list(alone(twin, loss, in_double(inputs), in_double(targets), examples))
        rtol = precision(rows, exact)
        rows = exact
    wanted = [length(row) for row in rows]
    clip_norm = between(wanted)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    got, norms = clipped_sum(model, loss, inputs, targets, clip_norm)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was changed"
    assert all(parameter.grad is None for parameter in model.parameters())
    above = max(rtol, CHARGED) if wide else rtol  # a norm in float32 is a bound from above
    for norm, want in zip(norms.tolist(), wanted, strict=True):
        assert want * (1 - rtol) - 1e-7 <= norm <= want * (1 + above) + 1e-7, (norm, want, rtol)
    assert got.keys() == rows[0].keys()
    clipped = [clip_norm / norm if norm > clip_norm else 0.0 for norm in wanted]
    short = min(max(shortfall(got, rows, clipped), 1 - CHARGED), 1.0)
    factors = [short * factor if factor else 1.0 for factor in clipped]
    scale = sum(f * norm for f, norm in zip(factors, wanted, strict=True))
    for name, value in got.items():
        want = sum(f * row[name] for f, row in zip(factors, rows, strict=True))
        size = sum(f * float(row[name].norm()) for f, row in zip(factors, rows, strict=True))
        error = float((value.double() - want).norm())
        assert error <= rtol * (size + scale / 100) + 1e-10, (
            f"{name}: off by {error:.3g} of the examples' {size:.3g}; allowed {rtol:.3g} of it"
        )
    return wanted


# Sums taken in another order err as much as an ordinary pass does, give or take; a float32 number
# is exact to 6e-8, and a hundred roundings one after the other are what the shallowest nets do.
IN_ANOTHER_ORDER = 4.0
ROUNDINGS = 100 * 2**-24


def precision(rows: list[dict[str, Tensor]], exact: list[dict[str, Tensor]]) -> float:
    """What the engine may be off by, relative: a multiple of the ordinary pass's own error."""
    worst = 0.0
    for row, true in zip(rows, exact, strict=True):
        whole = length(true)
        for name, value in true.items():
            size = float(value.norm()) + whole / 100
            worst = max(worst, float((row[name] - value).norm()) / max(size, 1e-30))
    return IN_ANOTHER_ORDER * worst + ROUNDINGS


def shortfall(got: dict[str, Tensor], rows: list[dict[str, Tensor]], clipped: list[float]) -> float:
    """The one k for which Σ unclipped + k Σ clipped is nearest to the sum; 1 if none is clipped."""
    product = square = 0.0
    for name, value in got.items():
        kept = sum(row[name] for row, f in zip(rows, clipped, strict=True) if not f)
        cut = sum(f * row[name] for row, f in zip(rows, clipped, strict=True) if f)
        if isinstance(cut, Tensor):
            product += float(((value.double() - kept) * cut).sum())
            square += float(cut.square().sum())
    return product / square if square else 1.0


def another(inputs: Any, generator: np.random.Generator, scale: float) -> Any:
    """A record unlike the given one: numbers drawn anew and scaled, whole numbers permuted."""
    if isinstance(inputs, dict):
        return {
            name: value if "mask" in name else another(value, generator, scale)
            for name, value in inputs.items()
        }
    if isinstance(inputs, tuple):
        return tuple(another(value, generator, scale) for value in inputs)
    if inputs.is_floating_point():
        return randn(inputs.shape, generator=generator).to(inputs.dtype) * scale
    flat = inputs.flatten()
    return flat[randperm(len(flat), generator=generator)].reshape(inputs.shape)


def replaced(inputs: Any, record: int, new: Any) -> Any:
    if isinstance(inputs, dict):
        return {name: replaced(value, record, new[name]) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(replaced(a, record, b) for a, b in zip(inputs, new, strict=True))
    changed = inputs.clone()
    changed[record] = new[0]
    return changed


def assert_isolated(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    *,
    rtol: float = 2e-4,
    record: int = 1,
    scale: float = 10.0,
    clip_norm: float | None = None,
    random: bool = False,
    seed: int = 5,
) -> None:
    """Replacing one record moves the sum by at most 2 C and no other norm; removing it, by C.

    Random draws are repeated, so dropout may be on (``random``), but only for batches of one
    size; a smaller one draws other numbers, and no removal is tried. ``clip_norm`` defaults to
    half of the least norm, at which every contribution has length C and nothing hides below it.
    """
    examples = size_of(targets)
    one = slice(record, record + 1)
    generator = stream(11)
    other = replaced(inputs, record, another(rows_of(inputs, one), generator, scale))

    def released(inputs: Any, targets: Any, bound: float) -> tuple[dict[str, Tensor], Tensor]:
        reseed(seed)
        np.random.seed(seed)  # noqa: NPY002 (the generator that models find)
        random_numbers.seed(seed)
        return clipped_sum(model, loss, inputs, targets, bound)

    if clip_norm is None:
        _, norms = released(inputs, targets, 1.0)
        clip_norm = max(float(norms.min()) / 2, 1e-6)
    here, norms = released(inputs, targets, clip_norm)
    there, moved_norms = released(other, targets, clip_norm)
    slack = 1 + max(rtol, 1e-4)
    assert difference(here, there) <= 2 * clip_norm * slack
    rest = [i for i in range(examples) if i != record]
    torch.testing.assert_close(norms[rest], moved_norms[rest], rtol=rtol, atol=1e-7)
    if not random:
        less, _ = released(rows_of(inputs, rest), rows_of(targets, rest), clip_norm)
        assert difference(here, less) <= clip_norm * slack


def perturb(model: nn.Module, amount: float = 0.05) -> None:
    """Move every weight as training would, zeros included."""
    generator = stream(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter.dtype), alpha=amount)


def judge(make: Make) -> None:
    """All that the zoo asks of one architecture.

    Twice on one model, weights perturbed and batch size and lengths changed in between; records
    replaced and removed, dropout off and on; and once more from a zero-initialised head, in
    float64.
    """
    case = fresh(make)
    with warnings.catch_warnings(), case.around():
        if not case.alone:
            warnings.simplefilter("error", SlowGradientsWarning)
        _twice(case)
        inputs, targets = case.batch(4, False)
        assert_isolated(case.model, case.loss, inputs, targets, rtol=case.rtol)
        if set_dropout(case.model, 0.3):
            assert_isolated(case.model, case.loss, inputs, targets, rtol=case.rtol, random=True)
        case = fresh(make)
        zeroed = [p for name, p in case.model.named_parameters() if name.startswith(case.head)]
        assert zeroed, f"no parameter begins with {case.head}"
        with torch.no_grad():
            for parameter in zeroed:
                parameter.zero_()
        if case.exact is not None:
            case.model.double()
            single, case.rtol = case.batch, case.exact
            case.batch = lambda examples, longer: in_double(single(examples, longer))
        _twice(case)


def fresh(make: Make) -> Case:
    """The case as first made, without dropout: the oracle would draw other numbers."""
    reseed(0)
    case = make()
    initialised(case.model)
    set_dropout(case.model, 0.0)
    return case


def _twice(case: Case) -> None:
    few = 2 if case.exact == case.rtol else 3
    wide = case.exact not in (None, case.rtol)
    compare(case.model, case.loss, *case.batch(few, False), case.rtol, wide)
    perturb(case.model)
    compare(case.model, case.loss, *case.batch(few + 1, True), case.rtol, wide)


DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "attn_dropout", "drop_prob")


def in_double(tree: Any) -> Any:
    """The same batch with floating-point numbers in float64."""
    if isinstance(tree, Tensor):
        return tree.double() if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {name: in_double(value) for name, value in tree.items()}
    return tuple(in_double(value) for value in tree)


def set_dropout(model: nn.Module, share: float) -> bool:
    """Set what dropout and stochastic depth leave out; whether the model has any."""
    found = False
    for module in model.modules():
        names = [name for name in DROPOUTS if isinstance(getattr(module, name, None), float)]
        depth = type(module).__name__ == "StochasticDepth"
        if depth or isinstance(module, nn.modules.dropout._DropoutNd):
            names.append("p")
        for name in names:
            setattr(module, name, share)
            found = True
    return found


def collected(cases: dict[str, Make], quick: tuple[str, ...] = ()) -> list[Any]:
    """The cases as pytest parameters; all but ``quick`` are slow, and CI takes every second."""
    unknown = set(quick) - cases.keys()
    assert not unknown, unknown
    slow = [name for name in cases if name not in quick]
    marks = {name: [pytest.mark.slow] for name in slow}
    for name in slow[1::2]:
        marks[name].append(pytest.mark.repeated)
    return [pytest.param(make, id=name, marks=marks.get(name, ())) for name, make in cases.items()]

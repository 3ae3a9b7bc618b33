"""The numbers that are added obey sensitivity C: norms, factors, sums against exact arithmetic."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drawn import rand, randn, stream
from forethought.gradients import clipped_sum, sums
from forethought.gradients.sums import (
    CHARGE,
    BoundedTerm,
    Convolved,
    Dense,
    Measured,
    OneHot,
    Outer,
    Term,
    Window,
    bounded,
    clip_and_sum,
    mass_of,
)

B = 5


def exact(values: Tensor) -> np.ndarray:
    """The same numbers as fractions."""
    flat = [Fraction(float(v)) for v in values.detach().double().flatten()]
    return np.array(flat, dtype=object).reshape(tuple(values.shape))


def exact_rows(term: Term) -> np.ndarray:
    """Every example's gradient in exact arithmetic, shape (B, parameters)."""
    if isinstance(term, Dense):
        return exact(term.values.flatten(1))
    if isinstance(term, Outer):
        total = 0
        for left, right in term.blocks:
            one = exact(left.dense(right) if isinstance(left, OneHot) else left)
            total = total + np.einsum("btm,btn->bmn", one, exact(right))
        total = total.swapaxes(1, 2) if term.transposed else total
        return total.reshape(len(total), -1)
    assert isinstance(term, Convolved)
    # Patches by indexing, one tap of the kernel at a time.
    (pad, *_), (step, *_), (wide, *_) = (
        term.window.padding,
        term.window.stride,
        term.window.dilation,
    )
    image = exact(nn.functional.pad(term.image, (pad, pad, pad, pad)))
    gradient = exact(term.gradient)
    count, out, high, broad = gradient.shape
    inside = image.shape[1] // term.groups
    rows = np.zeros((count, out, inside, *term.window.size), dtype=object)
    for o, i, a, b in np.ndindex(rows.shape[1:]):
        channel = o // (out // term.groups) * inside + i
        seen = image[
            :,
            channel,
            a * wide : a * wide + (high - 1) * step + 1 : step,
            b * wide : b * wide + (broad - 1) * step + 1 : step,
        ]
        rows[:, o, i, a, b] = (seen * gradient[:, o]).sum((1, 2))
    rows = rows.reshape(count // term.several, term.several, -1)
    return rows.sum(1)


def numbers(term: Term) -> np.ndarray:
    """What is added: of a convolution that is written out, the gradients as they were rounded."""
    if isinstance(term, Convolved) and term._written is not None:
        return exact(term._written.values.flatten(1))
    return exact_rows(term)


def squared(rows: np.ndarray) -> np.ndarray:
    return (rows * rows).sum(1)


def final(held: list[BoundedTerm]) -> tuple[Tensor, Tensor]:
    """Norms and masses as they are used, shape (parameters, contributions) each."""
    measured = Measured([term.bounds() for term in held], ("one",) * len(held))
    if not bool(torch.isfinite(measured.norms.total).all()):
        _, measured = sums._settled(held, measured)
    norms = measured.norms.by_parameter
    return norms, norms if measured.masses is None else measured.masses


def window(stride: int = 1, padding: int = 1, dilation: int = 1) -> Window:
    return Window((3, 3), (stride,) * 2, (padding,) * 2, (dilation,) * 2)


def some(seed: int, *shape: int) -> Tensor:
    """Numbers of very different magnitude, in float32."""
    generator = stream(seed)
    values = randn(*shape, generator=generator)
    return values * randn(*shape, generator=generator).exp()


def cancelling(seed: int, batch: int, time: int, m: int, n: int) -> Outer:
    """Products that cancel over time down to the last places of float32."""
    left, right = some(seed, batch, time // 2, m), some(seed + 1, batch, time // 2, n)
    lefts = torch.cat([left, left * (1 + 2.0**-21)], 1)
    return Outer([(lefts, torch.cat([right, -right], 1))])


TERMS: dict[str, Callable[[int], Term]] = {
    "dense": lambda s: Dense(some(s, B, 3, 4)),
    "dense, bfloat16": lambda s: Dense(some(s, B, 3, 4).bfloat16()),
    "linear": lambda s: Outer([(some(s, B, 1, 3), some(s + 1, B, 1, 4))]),
    "linear, bfloat16": lambda s: Outer(
        [(some(s, B, 1, 3).bfloat16(), some(s + 1, B, 1, 4).bfloat16())]
    ),
    "linear over time": lambda s: Outer([(some(s, B, 6, 3), some(s + 1, B, 6, 4))], True),
    "time first": lambda s: Outer(
        [(some(s, 6, B, 3).transpose(0, 1), some(s + 1, 6, B, 4).transpose(0, 1))]
    ),
    "cancelling": lambda s: cancelling(s, B, 6, 3, 4),
    "embedding": lambda s: Outer(
        [(OneHot(torch.arange(B * 6).view(B, 6) % 4, 5), some(s, B, 6, 3))]
    ),
    "embedding of one token": lambda s: Outer(
        [(OneHot(torch.arange(B).view(B, 1) % 4, 5), some(s, B, 1, 3))]
    ),
    "tied": lambda s: Outer(
        [
            (OneHot(torch.arange(B * 6).view(B, 6) % 4, 5), some(s, B, 6, 3)),
            (some(s + 1, B, 4, 5), some(s + 2, B, 4, 3)),
        ]
    ),
    "convolution, written": lambda s: Convolved(
        some(s, B, 2, 5, 5), some(s + 1, B, 3, 5, 5), window()
    ),
    "convolution, ghost": lambda s: Convolved(
        some(s, B, 5, 3, 3), some(s + 1, B, 5, 2, 2), window(2)
    ),
    "convolution, ghost in groups": lambda s: Convolved(
        some(s, B, 12, 3, 3), some(s + 1, B, 12, 1, 1), window(padding=0), 2
    ),
    "convolution, ghost of one position": lambda s: Convolved(
        some(s, B, 20, 3, 3), some(s + 1, B, 16, 1, 1), window(padding=0)
    ),
    "convolution, several": lambda s: Convolved(
        some(s, 2 * B, 2, 4, 4), some(s + 1, 2 * B, 3, 4, 4), window(), 1, 2
    ),
}


@pytest.mark.thinned
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e16, 3e19])
@pytest.mark.parametrize("name", TERMS)
def test_norms_are_upper_bounds_and_not_much_more(name: str, scale: float) -> None:
    for seed in range(3):
        term = bounded(TERMS[name](seed))
        if isinstance(term, Dense | Outer):
            values = term.values if isinstance(term, Dense) else term.blocks[0][1]
            values *= scale
        else:
            term.gradient.mul_(scale)
        found = final([term])
        rows = numbers(term)
        true = squared(rows)
        for at in range(B):
            norm, mass = (Fraction(float(v[0, at])) for v in found)
            square = norm * norm
            assert square >= true[at]
            assert mass * mass >= true[at]
            # 1 % of the norm, a float32 unit of what may cancel, and underflow.
            most = 1.01 * math.sqrt(true[at]) + 2.0**-24 * float(mass)
            assert float(norm) <= most + 1e-14 * max(1.0, scale**0.5)


@pytest.mark.thinned
@pytest.mark.parametrize("length", [1, 2, 7, 64, None])
@pytest.mark.parametrize("name", TERMS)
def test_a_sum_is_as_exact_as_it_says(name: str, length: int | None) -> None:
    for seed in range(3):
        term = bounded(TERMS[name](seed))
        factors = rand(B, generator=stream(seed)).double()
        bounds = term.bounds()
        rows = numbers(term)
        wanted = (exact(factors)[:, None] * rows).sum(0)
        off = exact(term.summed(factors, length).flatten()) - wanted
        allowed = term.off(length) * float((factors * mass_of(bounds)).sum()) + 1e-37
        assert math.sqrt((off * off).sum()) <= allowed
        assert term.summed(factors, length).dtype == torch.float64


@pytest.mark.thinned
@pytest.mark.parametrize("rule", ["flat", "automatic", "per-layer"])
@pytest.mark.parametrize("name", TERMS)
def test_contributions_stay_within_the_clipping_norm(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The factors that are used, against the exact norm of what they are used on.
    clip = {
        "flat": sums.flat,
        "automatic": sums.automatic(0.01),
        "per-layer": sums.per_layer(),
    }[rule]
    used: list[Tensor] = []
    plan = sums.block_lengths

    def watched(held, factors, *rest):
        used.append(factors)
        return plan(held, factors, *rest)

    monkeypatch.setattr(sums, "block_lengths", watched)
    for seed, bound in ((0, 1e-3), (1, 1.0), (2, 1e4), (3, 0.1)):
        held = {"one": TERMS[name](seed), "two": TERMS["dense"](seed + 50)}
        rows = {key: numbers(bounded(term)) for key, term in held.items()}
        shapes = {key: nn.Parameter(torch.zeros(len(row[0]))) for key, row in rows.items()}
        clip_and_sum(dict(held), shapes, bound, clip)
        factors = [exact(row) for row in used.pop()]
        for at in range(B):
            square = sum(
                (factor[at] ** 2) * squared(row)[at]
                for factor, row in zip(factors, rows.values(), strict=True)
            )
            assert square <= (Fraction(bound) * Fraction(1 - CHARGE)) ** 2


def shares(count: int, parts: int) -> list[slice]:
    step = math.ceil(count / parts)
    return [slice(at, min(count, at + step)) for at in range(0, count, step)]


def crafted(kind: str, count: int) -> tuple[dict[str, Term], dict[str, nn.Parameter]]:
    """Equal contributions: in float32 their sum drifts, by ever more in every binade."""
    one = torch.full((count, 1, 2), 0.1)
    value = torch.full((count, 1, 2), 0.3)
    if kind == "dense":
        term: Term = Dense(torch.full((count, 4), 0.1))
    elif kind == "linear":
        term = Outer([(one, value)])
    elif kind == "linear over time":
        term = Outer([(one.expand(-1, 2, -1), value.expand(-1, 2, -1))])
    elif kind == "embedding":
        term = Outer([(OneHot(torch.zeros(count, 1, dtype=torch.long), 2), value)])
    elif kind == "tied":
        hot = OneHot(torch.zeros(count, 1, dtype=torch.long), 2)
        term = Outer([(hot, value), (one, value)])
    elif kind == "convolution, written":
        term = Convolved(
            torch.full((count, 1, 3, 3), 0.1), torch.full((count, 1, 3, 3), 0.3), window()
        )
    else:
        term = Convolved(
            torch.full((count, 16, 1, 1), 0.1),
            torch.full((count, 16, 1, 1), 0.3),
            Window((3, 3), (1, 1), (1, 1), (1, 1)),
        )
    shape = bounded(term).picked(torch.tensor([0])).rows().shape[1:]
    return {"w": term}, {"w": nn.Parameter(torch.zeros(shape))}


CRAFTED = [
    "dense",
    "linear",
    "linear over time",
    "embedding",
    "tied",
    "convolution, written",
    "convolution, ghost",
]


def part_of(term: Term, part: slice) -> Term:
    if isinstance(term, Dense):
        return Dense(term.values[part])
    if isinstance(term, Convolved):
        return Convolved(term.image[part], term.gradient[part], term.window)
    assert isinstance(term, Outer)
    return Outer(
        [
            (OneHot(a.index[part], a.size) if isinstance(a, OneHot) else a[part], b[part])
            for a, b in term.blocks
        ]
    )


def drift(kind: str, parts: int, clip_norm: float, count: int = 56_400) -> float:
    """How far the computed sum is from the exact sum of the contributions, in units of C."""
    held, trained = crafted(kind, count)
    used: set[float] = set()
    plan = sums.block_lengths
    total = torch.zeros_like(trained["w"], dtype=torch.float64)

    def watched(held, factors, *rest):
        used.update(factor for factor in factors.flatten().tolist() if factor)  # others fill up
        return plan(held, factors, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "block_lengths", watched)
        for part in shares(count, parts):
            few = {"w": part_of(held["w"], part)}
            found, _ = clip_and_sum(few, trained, clip_norm, round_size=count)
            total += found["w"]
    (factor,) = used  # equal contributions have equal factors
    row = bounded(held["w"]).picked(torch.tensor([0])).rows()[0]
    wanted = np.longdouble(count) * np.longdouble(factor) * row.numpy().astype(np.longdouble)
    off = float(np.sqrt(((total.numpy().astype(np.longdouble) - wanted) ** 2).sum()))
    return off / clip_norm


@pytest.mark.thinned
@pytest.mark.parametrize("parts", [1, 57, 600])
@pytest.mark.parametrize("clip_norm", [0.05, 10.0])  # clipped, and as they are
@pytest.mark.parametrize("kind", CRAFTED)
def test_56400_equal_records_are_summed_within_the_charge(
    kind: str, clip_norm: float, parts: int
) -> None:
    assert drift(kind, parts, clip_norm) <= CHARGE / 2


@pytest.mark.parametrize("parts", [1, 57])
@pytest.mark.parametrize("kind", [kind for kind in CRAFTED if kind != "embedding"])
def test_one_sum_in_float32_would_be_noticed(
    kind: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(held, *rest):
        return [max(term.added for term in held)] * len(held)

    monkeypatch.setattr(sums, "block_lengths", short)
    assert drift(kind, parts, 0.05) > CHARGE / 2


def test_pieces_that_each_take_the_whole_charge_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without the size of the round every piece may be off by its own r/2.
    monkeypatch.setattr(sums, "_share", lambda size, whole: 1.0)
    assert drift("linear", 200, 0.05) > CHARGE / 2


@pytest.mark.parametrize("name", ["dense", "linear", "linear over time", "convolution, ghost"])
def test_a_norm_too_small_by_a_twentieth_of_a_percent_would_be_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {"dense": Dense, "convolution, ghost": Convolved}.get(name, Outer)
    bounds = kind.bounds

    def understated(term):
        return bounds(term)._replace(norms=bounds(term).norms * 0.9995)

    monkeypatch.setattr(kind, "bounds", understated)
    with pytest.raises(AssertionError):
        test_contributions_stay_within_the_clipping_norm(name, "flat", monkeypatch)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x[:, 0] > 0.1).long()) * x


# Models whose gradient is the record itself, for the loss ``outputs.sum()``.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(1, 1, bias=False), (1,)),
    "linear over time": (lambda: nn.Linear(1, 1, bias=False), (2, 1)),
    "convolution": (lambda: nn.Conv1d(1, 1, 1, bias=False), (1, 2)),
    "scale": (Scaled, (1,)),
    "embedding": (Looked, (1,)),
}


def neighbours() -> tuple[Tensor, Tensor]:
    """Batches that differ in the first record, whose float32 sums differ by tens of C = 1.

    The first 16,645 records bring the sum to 2^14 or, with the first one smaller, just below.
    What follows goes up by 0.51 units in the last place above 2^14 and down by 0.49: rounded to
    one up and none down there, but to one up and one down below 2^14, where units are half as
    large (after Casacuberta et al. 2022).
    """
    base = torch.full((16_644,), 1 - 2.0**-6)
    base = torch.cat([base, torch.tensor([1 / 16])])
    unit = 2.0**-9
    rest = torch.tensor([0.51 * unit, -0.49 * unit]).repeat((56_400 - len(base)) // 2)
    whole = torch.cat([base, rest])
    other = whole.clone()
    other[0] = 0.5
    return whole, other


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 57])
@pytest.mark.parametrize("name", MODELS)
def test_crafted_neighbours_move_the_sum_by_at_most_c(name: str, parts: int) -> None:
    whole, other = neighbours()
    moved = np.cumsum(whole.numpy())[-1] - np.cumsum(other.numpy())[-1]
    assert abs(moved) > 35  # float32, one after the other
    make, shape = MODELS[name]
    model = make()

    def total(records: Tensor) -> float:
        x = torch.zeros(len(records), *shape).flatten(1)
        x[:, 0] = records
        x = x.view(-1, *shape)
        found = 0.0
        for part in shares(len(x), parts):
            gradients, _ = clipped_sum(
                model,
                lambda outputs, targets: outputs.flatten(1).sum(1),
                x[part],
                torch.zeros(len(x[part])),
                1.0,
                round_size=len(x),
            )
            (gradient,) = gradients.values()
            assert gradient.dtype == torch.float64
            found += float(gradient.sum())
        return found

    # Replaced by one of the same sign: by no more than C.
    assert abs(total(whole) - total(other)) <= 1.0
    assert abs(total(whole) - total(whole[1:])) <= 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", TERMS)
def test_a_contribution_that_is_not_finite_adds_nothing(name: str, value: float) -> None:
    held, others = TERMS[name](1), TERMS[name](1)
    for term in (held, others):
        tensors = (
            [term.values]
            if isinstance(term, Dense)
            else [term.gradient]
            if isinstance(term, Convolved)
            else [right for _, right in term.blocks]
        )
        # Of the first example; two images of one example are its first two rows.
        for tensor in tensors:
            many = tensor.shape[0] // B
            tensor[:many] = 0.0
            if term is held:
                tensor[(0,) * tensor.dim()] = value
    shape = bounded(others).rows().shape[1:]
    trained = {"w": nn.Parameter(torch.zeros(shape))}
    found, norms = clip_and_sum({"w": held}, trained, 1.0)
    wanted, _ = clip_and_sum({"w": others}, trained, 1.0)
    assert not math.isfinite(float(norms[0])) and bool(torch.isfinite(norms[1:]).all())
    torch.testing.assert_close(found["w"], wanted["w"], rtol=1e-6, atol=1e-9)


def test_a_norm_beyond_float32_squares_is_clipped_and_not_lost() -> None:
    rows = torch.tensor([[3e30, 4e30], [0.3, 0.4]])
    trained = {"w": nn.Parameter(torch.zeros(2))}
    found, norms = clip_and_sum({"w": Dense(rows)}, trained, 1.0)
    torch.testing.assert_close(norms, torch.tensor([5e30, 0.5]))
    bound = 1 - CHARGE
    wanted = torch.tensor([0.6 * bound + 0.3, 0.8 * bound + 0.4], dtype=torch.float64)
    torch.testing.assert_close(found["w"], wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [1e30, 1e-30])
def test_numbers_at_the_ends_of_float32_are_added_in_float64(value: float) -> None:
    # c·l underflows, and its other factor is large: the record must count in full all the same.
    left = torch.tensor([[[1 / value, 0.0]], [[0.3, 0.4]]])
    right = torch.tensor([[[value * 1e6, 0.0]], [[1.0, 0.0]]])
    trained = {"w": nn.Parameter(torch.zeros(2, 2))}
    found, norms = clip_and_sum({"w": Outer([(left, right)])}, trained, 1e-3)
    torch.testing.assert_close(norms, torch.tensor([1e6, 0.5]))
    bound = 1e-3 * (1 - CHARGE)
    wanted = torch.tensor([[bound * 1.6, 0.0], [bound * 0.8, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found["w"], wanted, rtol=1e-6, atol=1e-30)


def test_what_underflows_in_float32_is_added_in_float64() -> None:
    # c·l is below every float32 number, and r carries it back to where it counts.
    left, right = torch.tensor([[[1.2e-38, 0.0]]]), torch.tensor([[[1e35, 0.0]]])
    trained = {"w": nn.Parameter(torch.zeros(2, 2))}
    found, _ = clip_and_sum({"w": Outer([(left, right)])}, trained, 1e-11)
    assert 0.98e-11 < float(found["w"].norm()) <= 1e-11


def test_a_factor_that_carries_a_number_out_of_float32_is_used_in_float64() -> None:
    left, right = torch.tensor([[[1e36, 0.0]]]), torch.tensor([[[1e-37, 0.0]]])
    trained = {"w": nn.Parameter(torch.zeros(2, 2))}
    found, _ = clip_and_sum({"w": Outer([(left, right)])}, trained, 1e4, sums.automatic(1e-3))
    assert 0.9e4 < float(found["w"].norm()) <= 1e4


@pytest.mark.parametrize("value", [1e12, 1e19, 1e25, 3e37])
@pytest.mark.parametrize("name", TERMS)
def test_a_huge_record_never_stops_a_round(name: str, value: float) -> None:
    # Whatever one record holds, it adds at most C and the others what they added before.
    held = TERMS[name](1)
    tensors = (
        [held.values]
        if isinstance(held, Dense)
        else [held.gradient, held.image]
        if isinstance(held, Convolved)
        else [v for block in held.blocks for v in block if isinstance(v, Tensor)]
    )
    for tensor in tensors:
        tensor[: tensor.shape[0] // B] *= value
    trained = {
        "w": nn.Parameter(torch.zeros(bounded(held).picked(torch.arange(1)).rows().shape[1:]))
    }
    found, _ = clip_and_sum({"w": held}, trained, 1e-3)
    alone = held.without(torch.arange(B) == 0)
    others, _ = clip_and_sum({"w": alone}, trained, 1e-3)
    assert float((found["w"] - others["w"]).norm()) <= 1e-3


def _legacy() -> None:
    torch.set_float32_matmul_precision("medium")


def _by_backend() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def _by_family() -> None:
    torch.backends.mkldnn.fp32_precision = "bf16"


def _everywhere() -> None:
    torch.backends.fp32_precision = "tf32"


@pytest.fixture
def precisions() -> Iterator[Callable[[], list[str]]]:
    backends = torch.backends
    if not hasattr(backends.mkldnn, "matmul"):
        pytest.skip("this torch has no precision of single backends (2.9 and later have)")
    places = (
        *(backends, backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv),
        backends.cuda.matmul,
    )
    yield lambda: [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("allow", [_legacy, _by_backend, _by_family, _everywhere])
def test_autocast_and_fast_products_do_not_reach_the_sums(
    allow: Callable[[], None],
    precisions: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    term = TERMS["linear over time"](3)
    trained = {"w": nn.Parameter(torch.zeros(4, 3))}
    wanted, norms = clip_and_sum({"w": TERMS["linear over time"](3)}, trained, 1.0)
    bounds, seen = Outer.bounds, []

    def watched(term):
        seen.append((*precisions()[2:], torch.is_autocast_enabled("cpu")))
        return bounds(term)

    monkeypatch.setattr(Outer, "bounds", watched)
    allow()
    before = precisions()
    assert {"bf16", "tf32"} & set(before)
    with torch.autocast("cpu", torch.bfloat16):
        found, got = clip_and_sum({"w": term}, trained, 1.0)
    assert precisions() == before
    assert set(seen) == {("ieee", "ieee", "ieee", False)}
    assert torch.equal(found["w"], wanted["w"]) and torch.equal(got, norms)


def test_a_term_of_ones_own_is_written_out() -> None:
    class Own:
        """Claims a norm of zero; nothing rests on that."""

        def squared_norms(self) -> Tensor:
            return torch.zeros(2)

        def weighted(self, factors: Tensor) -> Tensor:
            raise AssertionError("not asked")

        def rows(self) -> Tensor:
            return torch.tensor([[3.0, 4.0], [0.3, 0.4]])

        def without(self, bad: Tensor) -> Term:
            return self

        def settled(self) -> Term:
            return self

        def way(self) -> str:
            return "own"

    found, norms = clip_and_sum({"w": Own()}, {"w": nn.Parameter(torch.zeros(2))}, 1.0)
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.5]))
    assert float(found["w"].norm()) <= 1.5


@pytest.mark.parametrize(("given", "message"), [(1, "round_size"), (1 << 21, "keeps its bound")])
def test_impossible_rounds_are_refused(given: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clip_and_sum(
            {"w": Dense(torch.ones(2, 3))},
            {"w": nn.Parameter(torch.zeros(3))},
            1.0,
            round_size=given,
        )


def test_what_float64_cannot_add_either_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "OWN", 0.0)
    with pytest.raises(ValueError, match="round_size"):
        clip_and_sum({"w": Dense(torch.ones(2, 3))}, {"w": nn.Parameter(torch.zeros(3))}, 1.0)


def test_mass_that_cancels_costs_the_record_itself_only() -> None:
    # Its gradient is small, what cancels behind it is not: scaled down, and nobody else with it.
    left = torch.ones(2, 2, 1) * torch.tensor([1e4, 1.0]).view(2, 1, 1)
    right = torch.tensor([[[1e4], [-1e4 + 1 / 1024]], [[0.5], [0.25]]])
    term = Outer([(left, right)])
    trained = {"w": nn.Parameter(torch.zeros(1, 1))}
    alone, _ = clip_and_sum({"w": part_of(term, slice(1, 2))}, trained, 1.0)
    both, _ = clip_and_sum({"w": term}, trained, 1.0)
    assert float(alone["w"]) == 0.75
    mass = 2e8
    assert 0 < float(both["w"]) - 0.75 <= 1e4 / 1024 * sums.MASS / mass * (1 + 1e-6)


def test_roundings_count_the_depth_of_a_blocked_sum() -> None:
    assert sums.roundings(100, 30) == 34
    assert sums.roundings(5, 30) == 6
    assert sums.gamma(1 << 23, torch.float32) == math.inf


@pytest.mark.parametrize(
    ("batch", "time", "m", "n"), [(300, 1, 10, 8192), (300, 1, 8192, 10), (70, 5, 40, 9000)]
)
def test_long_rows_are_added_in_short_slabs(batch: int, time: int, m: int, n: int) -> None:
    """Several slabs, either side the longer one: against one sum in another order."""
    left, right = randn(batch, time, m), randn(batch, time, n)
    factors = rand(batch)
    outer = Outer([(left, right)])
    assert batch * time > 2 * outer._slab
    expected = torch.einsum("b,btm,btn->mn", factors.double(), left.double(), right.double())
    torch.testing.assert_close(outer.summed(factors, None), expected, rtol=1e-12, atol=1e-10)
    masses = torch.einsum(
        "b,bt,bt->", factors.double(), left.double().norm(dim=2), right.double().norm(dim=2)
    )
    assert float((outer.summed(factors, None) - expected).norm()) <= 2 * outer.off(None) * float(
        masses
    )


@pytest.mark.parametrize("rows", [0, 1, 3, 64, 300])
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_large_products_are_within_the_bound_of_their_roundings(
    rows: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "LEAST_PRODUCTS", 0)  # by oneDNN, however few the rows
    one, other = randn(rows, 200), randn(200, 400)
    if turned:
        one, other = randn(200, rows).t(), randn(400, 200).t()
    exact = one.double() @ other.double()
    most = sums.gamma(200, torch.float32) * (one.double().abs() @ other.double().abs())
    for found in (sums.matmul(one, other), sums.product_in_blocks(one, other, 64)):
        assert ((found.double() - exact).abs() <= most).all()


def test_a_product_without_rows_is_empty_on_other_devices_too() -> None:
    one, other = torch.empty(0, 5, device="meta"), torch.empty(5, 3, device="meta")
    assert sums.product_in_blocks(one, other, 2).shape == (0, 3)


def test_a_row_of_a_large_product_has_the_same_bits_in_every_block() -> None:
    one, other = randn(256, 300), randn(300, 500)
    whole = sums.matmul(one, other)
    order = torch.from_numpy(np.random.default_rng(5).permutation(256))
    assert torch.equal(sums.matmul(one[order], other), whole[order])
    for size in (16, 48, 128):
        assert torch.equal(sums.matmul(one[:size], other), whole[:size])


def test_matrices_with_gaps_and_other_types_are_multiplied_too() -> None:
    wide = randn(300, 900)
    for one, other in (
        (randn(64, 300), wide[:, ::2]),
        (wide[::2, :300], wide[:, 100:500]),
        (randn(64, 300).double(), wide.double()),
    ):
        exact = one.double() @ other.double()
        torch.testing.assert_close(sums.matmul(one, other).double(), exact, rtol=1e-4, atol=1e-3)


def test_gradients_pass_through_a_large_linear_map_twice() -> None:
    weight, bias = randn(400, 200) / 16, randn(400)
    x = randn(8, 200).requires_grad_()
    slopes = []
    for outputs in (sums.fast_linear(x, weight, bias), F.linear(x, weight, bias)):
        (first,) = torch.autograd.grad(outputs.sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        slopes.append((outputs.detach(), first.detach(), second))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


# A bias of n numbers, of which others in memory are no part, from one parameter.
BIASES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "in a row": ((300,), lambda b: b),
    "a column": ((300, 3), lambda b: b[:, 1]),
    "a row of several": ((3, 300), lambda b: b[1]),
    "of one number": ((1,), lambda b: b),
    "one number for all": ((1,), lambda b: b.expand(300)),
    "a scalar": ((), lambda b: b),
    "a scalar for all": ((), lambda b: b.expand(300)),
    "with a dimension in front": ((1, 300), lambda b: b),
    "none": ((0,), lambda b: None),
}


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_large_linear_map_reads_its_bias_and_nothing_behind_it(
    name: str, everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if everywhere:  # also on processors where torch's own product is faster
        try:
            torch.ops.mkldnn._linear_pointwise(randn(2, 3), randn(2, 3), None, "none", [], "")
        except (AttributeError, RuntimeError):
            pytest.skip("this torch has no product by oneDNN")
        monkeypatch.setattr(sums, "BY_ONEDNN", True)
    shape, biased = BIASES[name]
    memory = randn(2000)  # what follows the bias in memory is not zero
    bias = biased(memory[1 : 1 + math.prod(shape)].view(shape))
    x, weight = randn(7, 200), randn(300, 200)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for one in (x, x.view(7, 1, 200)):
        found = sums.fast_linear(one, weight, bias).view_as(wanted)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda v: v,
    "columns": lambda v: v.t().contiguous().t(),
    "with gaps": lambda v: torch.cat([v, v], 1)[:, : v.shape[1]],
    "every second": lambda v: torch.stack([v, v + 1], 2)[:, :, 0],
    "behind others": lambda v: torch.cat([v[:1], v]).flatten()[v.shape[1] :].view_as(v),
    "one row for all": lambda v: v[:1].expand_as(v),
    "one column for all": lambda v: v[:, :1].expand_as(v),
    "a negative view": lambda v: torch._neg_view(v),
    "sparse": lambda v: v.to_sparse_csr(),
    "a parameter": nn.Parameter,
    "of a class of its own": lambda v: v.as_subclass(Own),
    "in float64": lambda v: v.double(),
}


class Own(Tensor):
    pass


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_large_linear_map_of_any_layout_is_torchs(name: str) -> None:
    x, weight = randn(7, 200), randn(300, 200)
    for one, other in ((LAYOUTS[name](x), weight), (x, LAYOUTS[name](weight))):
        if one.dtype != other.dtype:
            with pytest.raises(RuntimeError, match="same dtype"):
                sums.fast_linear(one, other, None)
            continue
        wanted = one.to_dense().double() @ other.to_dense().double().t()
        with torch.no_grad():
            for found in (sums.fast_linear(one, other, None), sums.matmul(one, other.t())):
                torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        ((7, 400), (300, 200), None),
        ((7, 100), (300, 200), (300,)),
        ((7, 200), (300, 200), (200,)),
        ((7, 200), (300, 200), (600,)),
    ],
)
def test_shapes_that_do_not_fit_are_refused_in_torchs_words(
    x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...] | None
) -> None:
    given = [torch.zeros(shape) for shape in (x, weight)]
    with pytest.raises(RuntimeError, match=r"shapes cannot|expanded size"):
        sums.fast_linear(*given, None if bias is None else torch.zeros(bias))


class Biased(nn.Module):
    """A linear map with a bias of its own form, or a weight of one dimension."""

    def __init__(self, name: str, way: str) -> None:
        super().__init__()
        shape, self.biased = BIASES[name]
        self.way = way
        self.weight = nn.Parameter(randn(300, 200) / 16)
        memory = randn(2000) / 4
        self.bias = nn.Parameter(memory[1 : 1 + math.prod(shape)].view(shape))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.biased(self.bias)
        if self.way == "addmm":
            return torch.addmm(bias, x, self.weight.t())
        weight = self.weight[0] if self.way == "one dimension" else self.weight
        outputs = F.linear(x, weight, bias)
        return outputs.unsqueeze(1) if self.way == "one dimension" else outputs


def own_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.unsqueeze(1)).square().sum(1) / 20


@pytest.mark.parametrize("frozen", ["", "bias", "weight"])
@pytest.mark.parametrize("way", ["linear", "addmm"])
@pytest.mark.parametrize("name", BIASES)
def test_gradients_of_a_linear_map_with_any_bias_are_exact(
    name: str, way: str, frozen: str
) -> None:
    if name == "none" and (way == "addmm" or frozen == "weight"):
        return  # there is no such call, or nothing to train
    model = Biased(name, way)
    if frozen:
        model.get_parameter(frozen).requires_grad_(False)
    agree_with_float64(model)


def test_gradients_of_a_linear_map_to_one_number_are_exact() -> None:
    agree_with_float64(Biased("none", "one dimension"))


def agree_with_float64(model: nn.Module) -> None:
    x, y = randn(6, 200), randn(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing goes one example at a time
        found, norms = clipped_sum(model, own_square, x, y, 1e6)
    exact = copy.deepcopy(model).double()
    trained = {name: p for name, p in exact.named_parameters() if p.requires_grad}
    losses = [own_square(exact(x[i : i + 1].double()), y[i : i + 1].double()) for i in range(6)]
    rows = [
        torch.autograd.grad(one.sum(), tuple(trained.values()), materialize_grads=True)
        for one in losses
    ]
    for name, column in zip(trained, zip(*rows, strict=True), strict=True):
        wanted = torch.stack(column).sum(0)
        torch.testing.assert_close(found[name], wanted, rtol=1e-3, atol=1e-4)
    squares = [sum(float(g.square().sum()) for g in row) for row in rows]
    torch.testing.assert_close(norms, torch.tensor(squares).sqrt(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 64, None])
def test_a_map_of_no_rows_adds_nothing(length: int | None) -> None:
    left, right = torch.zeros(3, 0, 4), torch.zeros(3, 0, 5)
    hot = OneHot(torch.zeros(3, 0, dtype=torch.long), 4)
    for block in ((left, right), (hot, right)):
        term = Outer([block])
        assert term.settled() is term and not term.bounds().norms.any()
        assert torch.equal(term.summed(torch.ones(3), length), torch.zeros(4, 5).double())
    for nothing in ((left, right), (hot, right)):
        some = (randn(3, 2, 4), randn(3, 2, 5))
        both, alone = Outer([nothing, some]), Outer([some])
        assert torch.equal(both.bounds().norms, alone.bounds().norms)
        factors = torch.ones(3)
        assert torch.equal(both.summed(factors, length), alone.summed(factors, length))


class Experts(nn.Module):
    """Each example goes to one expert: the others see none of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        chosen, outputs = x.argmax(-1) % 3, torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            outputs[chosen == number] = expert(x[chosen == number])
        return outputs


class Emptied(nn.Module):
    """A layer that is used on no rows, and on its own outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x.unsqueeze(1)[:, :0])).sum(1) + x


@pytest.mark.parametrize("kind", [Experts, Emptied])
def test_layers_that_see_no_rows_go_as_fast_as_others(kind: type[nn.Module]) -> None:
    model, x, y = kind(), randn(6, 4), torch.zeros(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = clipped_sum(model, own_square, x, y, 1e6)
    wanted = torch.autograd.grad(own_square(model(x), y).sum(), tuple(model.parameters()))
    for one, other in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=1e-4, atol=1e-6)


def test_the_default_type_at_import_changes_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("sums_again", sums.__file__)
    assert spec is not None and spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sums_again", again)
    torch.set_default_dtype(torch.float64)
    try:
        spec.loader.exec_module(again)
    finally:
        torch.set_default_dtype(torch.float32)
    x, weight = randn(12, 300), randn(400, 300)
    assert torch.equal(again.fast_linear(x, weight, None), sums.fast_linear(x, weight, None))

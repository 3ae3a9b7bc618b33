"""Sizes of blocks follow from public numbers; a record's numbers do not follow from the others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from drawn import rand
from forethought.gradients import SlowGradientsWarning, batches, clipped, clipped_sum, sums
from forethought.gradients.batches import UNIT, Blocks, bits, filled, planned
from forethought.gradients.clipped import COMPARED, Subject, numbers_behind
from forethought.rounds.contributions import cross_entropy, squared_error
from forethought.training.cost import peak


@pytest.mark.parametrize("batch", [1, 7.3, 64, 256, 1024, 60_000])
def test_few_sizes_hold_nearly_every_poisson_batch_and_are_filled_cheaply(batch: float) -> None:
    sizes = planned(batch, math.sqrt(batch)).sizes
    assert len(sizes) <= 8 and list(sizes) == sorted(sizes)
    assert all(size % UNIT == 0 for size in sizes)
    draws = np.random.default_rng(5).poisson(batch, 20_000)
    found = planned(batch, math.sqrt(batch))
    rows = [sum(size for _, _, size in found.cut(int(count))) for count in draws]
    assert np.mean(draws > sizes[-1]) < 0.005
    # Half a step, which is about the spread, and never more than half of one unit and a bit.
    assert np.mean(rows) <= batch + 0.75 * max(UNIT, math.sqrt(batch)) + 1


def test_models_are_compared_on_as_many_examples_as_the_sweep_of_layers_needs() -> None:
    """With a few, an ELU in blocks of four passes and gives other bits later."""
    assert COMPARED.get() == 256


@pytest.mark.parametrize("most", [1, 3, 5, 16, 50, 1000])
def test_no_block_is_longer_than_what_may_be_held(most: int) -> None:
    found = planned(10_000, 100, most)
    assert len(found.sizes) == 1 and most / 2 < found.sizes[0] <= most
    assert all(max(other.sizes) <= most for other in found.others())


def test_blocks_cover_a_batch_once() -> None:
    found = Blocks((16, 32, 48))
    for count in range(200):
        places = [place for start, end, _ in found.cut(count) for place in range(start, end)]
        assert places == list(range(count))
        assert all(
            end - start <= size and size in found.sizes for start, end, size in found.cut(count)
        )


@pytest.mark.parametrize("most", [32, 48, 64, 336, 2000])
def test_shorter_blocks_cover_a_batch_once_and_are_filled_by_less_than_a_step(most: int) -> None:
    found = planned(10_000, 100).within(most)
    assert found.sizes[-1] == most and len(found.sizes) <= 8
    step = max(UNIT, *np.diff(found.sizes), found.sizes[0])
    assert step <= most / 8 + UNIT and all(size % UNIT == 0 for size in found.sizes)
    for count in (1, most - 1, most, most + 1, 10_000):
        cut = list(found.cut(count))
        assert sum(end - start for start, end, _ in cut) == count
        assert sum(size for _, _, size in cut) < count + step


def image_case(count: int = 200) -> Case:
    """A layer whose output has 12 × 10 × 10 numbers an example."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(1200, 3))
    return model, torch.randn(count, 1, 10, 10), torch.randint(0, 3, (count,))


@pytest.mark.parametrize("make", [image_case, lambda: chained(200)])
def test_values_that_a_processor_does_not_keep_shorten_the_blocks(
    make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four values of 64 examples at most, the same sum; a chain of linear layers is one product.

    On kernels whose bits hang on the place, blocks are shorter than that from the start.
    """
    found, bytes_held = [], []
    for large in (1 << 22, 64 * 1200):
        monkeypatch.setattr(clipped, "MOST_NUMBERS", large)
        model, inputs, targets = make()

        def run(
            model: nn.Module = model, data: tuple[Any, Any] = (inputs, targets)
        ) -> tuple[Any, Any]:
            return clipped_sum(model, cross_entropy, *data, 0.1, blocks=planned(len(data[0]), 14.0))

        found.append(run())  # the first call tries the blocks
        bytes_held.append(peak(run))
    (whole, norms), (short, other) = found
    assert torch.allclose(norms, other, rtol=1e-5)
    for name, one in whole.items():
        assert torch.allclose(one, short[name], rtol=1e-5, atol=1e-6)
    if make is image_case:
        assert bytes_held[1] < 4 * 64 * 1200 * 4
    else:
        assert bytes_held[1] == bytes_held[0]


def test_a_device_that_is_no_processor_has_blocks_as_long_as_planned() -> None:
    there = torch.empty(1, device="meta")
    assert clipped.shortened(1024, 1 << 20, there) == 1024
    assert clipped.shortened(1024, 1 << 20, torch.empty(1)) == 4 * UNIT
    assert clipped.shortened(20, 1 << 20, torch.empty(1)) == 20


def test_a_block_is_filled_with_its_own_examples() -> None:
    x = torch.arange(10.0).view(5, 2)
    assert filled(x, 3, 5, 5)[:, 0].tolist() == [6.0, 8.0, 6.0, 8.0, 6.0]
    assert filled(x, 0, 5, 5).data_ptr() == x.data_ptr()
    wide = filled({"a": x.t().contiguous().t()}, 0, 5, 5)["a"]
    assert wide.is_contiguous() and torch.equal(wide, x)


Case = tuple[nn.Module, torch.Tensor, torch.Tensor]


def chained(count: int = 40) -> Case:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 3))
    return model, torch.randn(count, 9), torch.randint(0, 3, (count,))


@pytest.fixture
def nudged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[int], slice]], None]]:
    """A product whose last bit is another in some rows of so many."""
    plain = clipped._linear

    def plant(which: Callable[[int], slice]) -> None:
        def linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
            output, some = plain(layer, x), which(len(x))
            other = torch.nextafter(output.detach(), output.detach() + 1) - output.detach()
            nudge = torch.zeros_like(other)
            nudge[some] = other[some]
            return output + nudge

        monkeypatch.setattr(clipped, "_linear", linear)

    yield plant


def settled(sizes: tuple[int, ...]) -> Blocks:
    model, x, y = chained()
    subject = Subject(model, cross_entropy, dict(model.named_parameters()))
    return clipped.probed(Blocks(sizes), subject, (x, y))


def heard(subject: Subject, seen: list[Any]) -> Subject:
    """The subject; what its gradients are computed from is added to ``seen``."""
    plain = subject.gradients

    def gradients(rows: Any, real: int, blocks: Blocks) -> Any:
        found = plain(rows, real, blocks)
        seen.append((rows, found))
        return found

    object.__setattr__(subject, "gradients", gradients)
    return subject


def test_what_a_first_pass_learns_changes_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    found, ways, probed, watched = [], set(), clipped.probed, clipped.watched

    def shown(*given: Any, **named: Any) -> Blocks:
        found.append(probed(*given, **named))
        return found[-1]

    def telling(subject: Subject, rows: Any, *given: Any) -> list[torch.Tensor]:
        """As on a machine on which lanes end in other bits than a chain of layers."""
        seen: list[Any] = []
        numbers = watched(heard(replace(subject), seen), rows, *given)
        chained = [isinstance(computed, list) for _, computed in seen]
        ways.update(chained)
        return [*numbers, torch.full((len(rows[1]),), int(chained[0]))]

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    monkeypatch.setattr(clipped, "probed", shown)
    monkeypatch.setattr(clipped, "watched", telling)
    inputs, targets = rand(64, 20), torch.arange(64) % 4
    for known in (False, True):
        model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))
        if known:
            clipped_sum(model, loss, inputs, targets, 1.0)
        clipped_sum(model, loss, inputs, targets, 1.0, blocks=planned(64, 8))
    assert ways == {False, True} and found[0] == found[1]


def test_where_places_are_alike_nothing_is_changed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settled((16, 32)) == Blocks((16, 32))


def test_another_last_bit_in_one_place_is_found(nudged: Callable) -> None:
    nudged(lambda count: slice(count - 1, count if count > 1 else 0))
    with pytest.warns(SlowGradientsWarning, match="at another place"):
        assert settled((16, 32)) == Blocks((1,))


def test_other_bits_in_long_blocks_leave_one_size(nudged: Callable) -> None:
    nudged(lambda count: slice(0, count if count > 32 else 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settled((32, 48)) == Blocks((64,))


@pytest.mark.parametrize("moved", [False, True])
def test_kernels_gradients_that_are_never_written_out_are_compared_as_they_are_held(
    monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    first = sums.Convolved.__init__

    def held(self: sums.Convolved, image: torch.Tensor, gradient: torch.Tensor, *rest: Any) -> None:
        # The signs of the last example's two sides: neither its gradient nor its norm changes.
        signs = torch.ones(len(image), 1, 1, 1)
        signs[len(image) - moved :] = -1
        first(self, image * signs, gradient * signs, *rest)

    def written(self: sums.Convolved) -> torch.Tensor:
        raise AssertionError("an example's gradient of a kernel was written out")

    monkeypatch.setattr(sums.Convolved, "__init__", held)
    monkeypatch.setattr(sums.Convolved, "rows", written)
    # Four classes: with two or three, products of MKL for SSE4 hang on an example's place.
    model = nn.Sequential(nn.Conv2d(96, 96, 3, padding=1), nn.Flatten(), nn.Linear(96 * 16, 4))
    given = rand(40, 96, 4, 4), torch.arange(40) % 4
    subject = Subject(model, cross_entropy, dict(model.named_parameters()))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SlowGradientsWarning)
        found = clipped.probed(Blocks((16, 32)), subject, given)
    assert (found == Blocks((1,)), len(said)) == (moved, int(moved))


def test_a_probe_leaves_weights_and_generators_as_they_were() -> None:
    model, x, y = chained()
    weights = [p.detach().clone() for p in model.parameters()]
    before = torch.get_rng_state()
    versions = [p._version for p in model.parameters()]
    clipped_sum(model, cross_entropy, x, y, 1.0, blocks=planned(40, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert versions == [p._version for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_a_probe_holds_for_the_products_that_it_tried() -> None:
    model, x, y = chained()
    seen: list[Any] = []
    subject = heard(Subject(model, cross_entropy, dict(model.named_parameters())), seen)
    counts = []
    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled):
            clipped.probed(Blocks((16, 32)), subject, (x, y))
        counts.append(len(seen))
    assert 0 < counts[0] < counts[1] == counts[2]


def test_what_the_data_say_does_not_reach_the_probe() -> None:
    tried = []
    for scale in (1.0, 1e30):
        model, x, y = chained()
        made: list[Any] = []
        subject = heard(Subject(model, cross_entropy, dict(model.named_parameters())), made)
        clipped.probed(planned(40, 6), subject, (x * scale, y))
        tried.append(torch.stack([rows[0] for rows, _ in made[:1]]))
    assert torch.equal(*tried)


def user_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.smooth_l1_loss(outputs, F.one_hot(targets, 3).to(outputs), reduction="none").sum(1)


class Asks(nn.Module):
    """Takes another way for every sign: its lanes part."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(9, 3), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) if bool(x.sum() > 0) else torch.sigmoid(self.two(x))


@pytest.mark.parametrize("kind", ["chain", "lanes", "parted"])
@pytest.mark.parametrize("sizes", [(48, 64), (16,), pytest.param((4,), marks=pytest.mark.slow)])
def test_a_record_has_the_same_numbers_whoever_else_is_there(
    kind: str, sizes: tuple[int, ...]
) -> None:
    model, x, y = chained(60)
    model = {"chain": model, "lanes": nn.Sequential(model, nn.LayerNorm(3)), "parted": Asks()}[kind]
    loss = cross_entropy if kind == "chain" else user_loss
    used = Blocks(sizes)
    whole = [part[:1] for part in numbers_behind(model, loss, x, y, used)]
    for count in (1, 2, 15, 16, 17, 47, 53, 59):
        for place in (0, count - 1):
            order = torch.arange(1, count + 1)
            order[place] = 0
            found = numbers_behind(model, loss, x[order], y[order], used)
            assert all(
                torch.equal(bits(one[place : place + 1]), bits(other))
                for one, other in zip(found, whole, strict=True)
            )


class Drawing(nn.Module):
    """A network that draws random numbers for each example between its layers."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.draw, self.last = nn.Linear(8, 8), draw, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.draw(self.first(x)).mean(1))


def attended(h: torch.Tensor) -> torch.Tensor:
    query = h.unsqueeze(1)
    return F.scaled_dot_product_attention(query, query, query, dropout_p=0.2).squeeze(1)


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "attention with dropout": attended,
    "encoder layer": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "dropout": lambda h: F.dropout(h, 0.3),
    "alpha dropout": lambda h: F.alpha_dropout(h, 0.3, True),
    "path dropped in place": lambda h: h * h.new_empty((h.shape[0], 1, 1)).bernoulli_(0.7),
    "noise in place": lambda h: h + torch.empty_like(h).normal_(),
    "chances of the example's own": lambda h: h * torch.bernoulli(torch.sigmoid(h)),
    "gumbel": F.gumbel_softmax,
}


@pytest.mark.thinned
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_of_the_model_slow_nothing_and_stay_with_their_example(name: str) -> None:
    model = Drawing(DRAWS[name]).train()
    x, y = rand(60, 5, 8), torch.arange(60) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradientsWarning)
        whole = numbers_behind(model, user_loss, x, y, Blocks((32, 48)))
        few = numbers_behind(model, user_loss, x[:37], y[:37], Blocks((32, 48)), 60)
    assert whole
    assert all(torch.equal(bits(a[:37]), bits(b)) for a, b in zip(whole, few, strict=True))


def test_an_output_that_nothing_uses_slows_nothing() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 10), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept, _ = self.first(x).chunk(2, -1)
            return self.last(kept)

    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradientsWarning)
        clipped_sum(
            Halved(), user_loss, rand(40, 8), torch.arange(40) % 3, 1.0, blocks=Blocks((48,))
        )


def test_examples_that_run_apart_keep_their_gradients_through_a_random_function() -> None:
    """Rows that fill up a block do not take them away: next to nothing is dropped here."""

    class Asked(nn.Module):
        def __init__(self, chance: float) -> None:
            super().__init__()
            self.first, self.last, self.chance = nn.Linear(9, 5), nn.Linear(5, 3), chance

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            if self.chance:
                h = F.alpha_dropout(h, self.chance, True)
            return self.last(h) if bool(x.sum() > 0) else self.last(torch.tanh(h))

    x, y = rand(40, 9) - 0.5, torch.arange(40) % 3
    found = []
    for chance in (0.0, 1e-12):
        torch.manual_seed(0)
        model = Asked(chance).train()
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowGradientsWarning)
            found.append(clipped_sum(model, user_loss, x, y, 1.0, blocks=Blocks((48,)))[0])
    for name in found[0]:
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-5, atol=1e-6)


def test_a_size_that_follows_from_the_batch_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_up", lambda count, step: max(1, math.ceil(count)))
    monkeypatch.setattr(Blocks, "fit", lambda self, count: count)

    # A kernel whose last bits follow from the number of rows, as some are on every machine.
    def by_rows(x: torch.Tensor, *layer: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, *layer) * (1 + len(x) % 3 * 2.0**-50)

    monkeypatch.setattr(sums, "F", SimpleNamespace(**{**vars(F), "linear": by_rows}))
    torch.manual_seed(3)
    x = torch.randn(70, 9).double()
    model = nn.Sequential(nn.Linear(9, 5).double(), nn.Identity())
    numbers = [
        numbers_behind(model, squared_error, x[:n], x[:n, :5], Blocks((80,))) for n in (67, 68, 69)
    ]
    same = [
        torch.equal(bits(a[:67]), bits(b[:67]))
        for other in numbers[1:]
        for a, b in zip(numbers[0], other, strict=True)
    ]
    assert not all(same)


def test_a_model_with_layers_of_every_kind_needs_no_other_blocks() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(64, 10), nn.SiLU(), nn.LayerNorm(10), nn.Linear(10, 3),
    )  # fmt: skip
    x, y = torch.randn(40, 1, 6, 6), torch.randint(0, 3, (40,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped_sum(model, cross_entropy, x, y, 1.0, blocks=planned(40, 6))


class Slow(nn.Module):
    """Differentiates inside itself: no example runs beside others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + torch.func.grad(lambda v: (v * 0.0).sum())(torch.ones(())))


@pytest.mark.parametrize("sizes", [None, (48,)])
@pytest.mark.parametrize("kind", ["chain", "slow"])
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (F.cross_entropy, "one value per example"),
        (lambda o, t: F.cross_entropy(o, t, reduction="none") / len(o), "the whole batch"),
    ],
    ids=["mean", "divided"],
)
@pytest.mark.filterwarnings("ignore::forethought.gradients.SlowGradientsWarning")
def test_a_loss_of_the_batch_is_refused_however_the_examples_go(
    loss: Callable, said: str, kind: str, sizes: tuple[int, ...] | None
) -> None:
    model, x, y = chained()
    with pytest.raises(ValueError, match=said):
        clipped_sum(
            model if kind == "chain" else Slow(), loss, x, y, 1.0,
            blocks=None if sizes is None else Blocks(sizes),
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["chain", "lanes"])
def test_what_fills_up_adds_nothing(kind: str) -> None:
    model, x, y = chained(21)
    model = model if kind == "chain" else nn.Sequential(model, nn.LayerNorm(3))
    whole, norms = clipped_sum(model, cross_entropy, x, y, 0.1, blocks=Blocks((64,)))
    assert norms.shape == (21,)
    each = [clipped_sum(model, cross_entropy, x[i : i + 1], y[i : i + 1], 0.1) for i in range(21)]
    for name, found in whole.items():
        torch.testing.assert_close(found, sum(one[name] for one, _ in each), rtol=1e-4, atol=1e-6)

"""The contract of clipped_sum: sensitivity, hostile inputs, groups, precision, no traces."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from drawn import randint, randn, reseed
from forethought.gradients import clipped_sum, example_losses, sums
from forethought.gradients.sums import CHARGE, automatic, per_layer


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.unsqueeze(1)).square().sum(1)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1),
        nn.GroupNorm(2, 16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def sequences() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 24), nn.GELU(), nn.Linear(24, 24), nn.Flatten(), Head())


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in gradients.values()]).double()


def by_graph(
    model: nn.Module, inputs: Tensor, targets: Tensor, function: Callable[..., Tensor] = loss
) -> tuple[dict[str, Tensor], Tensor]:
    """Per-example gradients from the graph of one batched pass (so dropout masks are shared)."""
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    values = function(model(inputs), targets)
    rows = [torch.autograd.grad(v, parameters, retain_graph=True) for v in values]
    stacked = {n: torch.stack([r[i].float() for r in rows]) for i, n in enumerate(names)}
    norms = torch.stack([v.flatten(1).norm(dim=1) for v in stacked.values()]).norm(dim=0)
    return stacked, norms


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small": (small, (4,)),
    "images": (images, (2, 6, 6)),
    "sequences": (sequences, (9, 4)),
}


class LongSequences(nn.Module):
    """Linear maps of more positions than one block of a Gram matrix has, each with its own bias."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(40, 300), nn.Linear(300, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x))).mean(1)


# Long enough to be worked out in several pieces, whose places must not be mixed up.
IN_PIECES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two blocks of positions": (LongSequences, (40, 40)),
    "four blocks, and a rest": (LongSequences, (131, 40)),
    "rows of a product": (lambda: nn.Linear(1200, 300), (1200,)),
    "derivations": (lambda: weight_norm(nn.Linear(500, 300)), (500,)),
}


@pytest.mark.parametrize("name", IN_PIECES)
def test_pieces_make_the_same_norms_and_sums_as_single_examples(name: str) -> None:
    make, shape = IN_PIECES[name]
    reseed(3)
    model, x, y = make(), randn(16, *shape), randint(0, 3, (16,))
    rows, expected = by_graph(model, x, y)
    clip_norm = float(expected.median())
    found, norms = clipped_sum(model, loss, x, y, clip_norm)
    torch.testing.assert_close(norms, expected, rtol=2e-4, atol=0)
    factors = (clip_norm * (1 - CHARGE) / expected.double()).clamp(max=1)
    for key, value in rows.items():
        wanted = torch.tensordot(factors, value.double(), 1)
        off = float((found[key] - wanted).norm())
        assert found[key].dtype == torch.float64 and off <= 1e-3 * float(wanted.norm())


def ready(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    reseed(7)
    make, shape = MODELS[name]
    model, x, y = make(), randn(8, *shape), randint(0, 3, (8,))
    model(x)  # lazy layers
    return model, x, y


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_one_example_more_moves_the_sum_by_at_most_c(name: str, scale: float) -> None:
    model, x, y = ready(name)
    x = x * scale
    for clip_norm in (1e-3, 0.3, 50.0):
        whole, norms = clipped_sum(model, loss, x, y, clip_norm)
        for out in (0, 5):
            keep = [i for i in range(8) if i != out]
            less, _ = clipped_sum(model, loss, x[keep], y[keep], clip_norm)
            moved = float((flat(whole) - flat(less)).norm())
            # The sums themselves are rounded to float32.
            rounding = 1e-5 * float(flat(whole).norm())
            assert moved <= clip_norm + rounding
            assert moved >= min(clip_norm, float(norms[out])) * (0.999 - CHARGE) - rounding


@pytest.mark.parametrize("name", MODELS)
def test_one_contribution_alone_never_exceeds_c(name: str) -> None:
    model, x, y = ready(name)
    for scale in (1e-30, 1e-8, 1.0, 1e8, 1e18, 1e30):
        for i in range(2):
            alone, _ = clipped_sum(model, loss, x[i : i + 1] * scale, y[i : i + 1], 0.1)
            assert float(flat(alone).norm()) <= 0.1


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 3e38, 1e-45])
@pytest.mark.parametrize("name", MODELS)
def test_a_poisoned_example_leaves_the_others_untouched(name: str, poison: float) -> None:
    model, x, y = ready(name)
    clean, clean_norms = clipped_sum(model, loss, x[1:], y[1:], 0.5)
    bad = x.clone()
    bad[0] = poison
    gradients, norms = clipped_sum(model, loss, bad, y, 0.5)
    assert all(bool(torch.isfinite(value).all()) for value in gradients.values())
    torch.testing.assert_close(norms[1:], clean_norms, rtol=1e-4, atol=0)
    moved = float((flat(gradients) - flat(clean)).norm())
    if torch.isfinite(norms[0]):
        assert moved <= 0.5 + 1e-5
    else:
        assert moved <= 1e-5 * float(flat(clean).norm())
    if not math.isfinite(poison):
        assert not torch.isfinite(norms[0])


def test_a_gradient_whose_squares_vanish_is_still_clipped() -> None:
    # |x| is huge and |g| so small that |g|² is zero in float32: the product is far above C.
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * 1e-24

    model = Scaled()
    x = torch.full((3, 3), 1e17)
    gradients, norms = clipped_sum(model, lambda o, t: o.sum(1), x, torch.zeros(3), 1e-9)
    assert float(flat(gradients).norm()) <= 3e-9
    assert bool((norms >= 1e-7).all())


def test_a_gradient_that_cancels_over_time_is_still_clipped() -> None:
    # Σ_t g_t x_tᵀ is a small difference of large terms; its norm must not come out too small.
    layer = nn.Linear(64, 64, bias=False)
    x = randn(4, 2, 64) * 1e3
    x[:, 1] = x[:, 0] * (1 + 1e-6)
    sign = torch.tensor([1.0, -1.0]).view(1, 2, 1)

    def difference(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs * sign).sum((1, 2))

    for i in range(4):
        gradients, _ = clipped_sum(layer, difference, x[i : i + 1], torch.zeros(1), 1e-3)
        assert float(flat(gradients).norm()) <= 1e-3 * 1.01


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_groups_clip_the_mean_gradient_of_each(groups: int) -> None:
    model, x, y = ready("images")
    assigned = torch.arange(8) % groups
    rows, _ = by_graph(model, x, y)
    means = [flat({n: r[assigned == k].mean(0) for n, r in rows.items()}) for k in range(groups)]
    norms = torch.stack([mean.norm() for mean in means])
    clip_norm = float(norms.min()) * 1.1
    gradients, got = clipped_sum(model, loss, x, y, clip_norm, groups=assigned)
    torch.testing.assert_close(got.double(), norms, rtol=1e-4, atol=0)
    wanted = sum(m * min(1.0, clip_norm * (1 - CHARGE) / float(m.norm())) for m in means)
    torch.testing.assert_close(flat(gradients), wanted, rtol=1e-3, atol=1e-5)


def test_one_record_moves_grouped_sums_by_at_most_2c() -> None:
    model, x, y = ready("small")
    for record in range(8):
        groups = torch.arange(8) % 3
        whole, _ = clipped_sum(model, loss, x * 50, y, 0.2, groups=groups)
        keep = [i for i in range(8) if i != record]
        less, _ = clipped_sum(
            model, loss, x[keep] * 50, y[keep], 0.2, groups=groups[keep], group_count=3
        )
        assert float((flat(whole) - flat(less)).norm()) <= 0.4 * (1 + 1e-5)


def test_empty_batches_and_groups_give_zeros() -> None:
    model, x, y = ready("small")
    gradients, norms = clipped_sum(model, loss, x[:0], y[:0], 1.0)
    assert norms.shape == (0,) and norms.dtype == torch.float32
    assert all(not value.any() for value in gradients.values())
    assert {n: v.shape for n, v in gradients.items()} == {
        n: p.shape for n, p in model.named_parameters()
    }
    none = torch.zeros(0, dtype=torch.long)
    gradients, norms = clipped_sum(model, loss, x[:0], y[:0], 1.0, groups=none, group_count=2)
    assert norms.tolist() == [0.0, 0.0] and not flat(gradients).any()
    groups = torch.tensor([0, 0, 2, 2, 2, 0, 0, 0])
    gradients, norms = clipped_sum(model, loss, x, y, 1.0, groups=groups, group_count=4)
    assert norms[1] == norms[3] == 0 and norms[0] > 0


@pytest.mark.parametrize("rule", ["flat", "automatic", "per-layer"])
def test_every_clipping_rule_against_the_written_out_gradients(rule: str) -> None:
    model, x, y = ready("images")
    rows, norms = by_graph(model, x, y)
    clip_norm = float(norms.median())
    clip = {"flat": None, "automatic": automatic(0.05), "per-layer": per_layer()}[rule]
    got, _ = clipped_sum(model, loss, x, y, clip_norm, **({} if clip is None else {"clip": clip}))
    clip_norm *= 1 - CHARGE
    for name, row in rows.items():
        if rule == "per-layer":
            own = row.flatten(1).norm(dim=1)
            factors = (clip_norm / math.sqrt(len(rows)) / own).clamp(max=1)
        elif rule == "automatic":
            factors = clip_norm / (norms + 0.05)
        else:
            factors = (clip_norm / norms).clamp(max=1)
        wanted = torch.tensordot(factors, row, 1)
        torch.testing.assert_close(got[name], wanted.double(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_give_the_same_sum(name: str) -> None:
    model, x, y = ready(name)
    model, x = model.double(), x.double()
    whole, norms = clipped_sum(model, loss, x, y, 0.5)
    parts = [clipped_sum(model, loss, x[i : i + 3], y[i : i + 3], 0.5) for i in (0, 3, 6)]
    torch.testing.assert_close(norms, torch.cat([n for _, n in parts]), rtol=1e-6, atol=0)
    total = sum(flat(g) for g, _ in parts)
    assert float((flat(whole) - total).norm()) <= 1e-6 * float(total.norm())


@pytest.mark.filterwarnings("error")
def test_dropout_draws_once_and_the_same_as_an_ordinary_pass() -> None:
    reseed(3)
    hidden = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3))
    model = nn.Sequential(hidden, nn.Dropout(0.4), nn.Flatten(), nn.Linear(80, 3))
    x, y = randn(16, 5, 8), randint(0, 3, (16,))
    for _ in range(2):
        reseed(11)
        rows, norms = by_graph(model, x, y)
        after = torch.get_rng_state()
        reseed(11)
        gradients, got = clipped_sum(model, loss, x, y, 1e6)
        assert torch.equal(torch.get_rng_state(), after)
        torch.testing.assert_close(got, norms, rtol=1e-4, atol=0)
        for name, row in rows.items():
            wanted = row.sum(0).to(gradients[name].dtype)
            torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("error")
def test_dropout_in_attention_is_another_for_every_example() -> None:
    reseed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3))
    x, y = randn(1, 5, 8).expand(6, 5, 8), torch.zeros(6, dtype=torch.long)
    reseed(11)
    _, first = clipped_sum(model, loss, x, y, 1e6)
    reseed(11)
    _, again = clipped_sum(model, loss, x, y, 1e6)
    assert torch.equal(first, again) and len(first.unique()) == 6


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_autocast_keeps_norms_and_sums_in_float32(name: str) -> None:
    model, x, y = ready(name)
    with torch.autocast("cpu", torch.bfloat16):
        rows, norms = by_graph(model, x, y)
        gradients, got = clipped_sum(model, loss, x, y, 1e6)
    assert got.dtype == torch.float32
    assert all(value.dtype == torch.float64 for value in gradients.values())
    torch.testing.assert_close(got, norms, rtol=2e-2, atol=0)
    wanted = flat({n: row.sum(0) for n, row in rows.items()})
    assert float((flat(gradients) - wanted).norm()) <= 0.03 * float(wanted.norm())


def test_bfloat16_autocast_of_a_recurrent_layer() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    reseed(0)
    model, x, y = Model(), randn(6, 3, 4), randint(0, 3, (6,))
    _, exact = clipped_sum(model, loss, x, y, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        gradients, norms = clipped_sum(model, loss, x, y, 1.0)
    assert norms.dtype == torch.float32
    assert gradients["lstm.weight_hh_l0"].dtype == torch.float64
    torch.testing.assert_close(norms, exact, rtol=5e-2, atol=0)


def test_the_model_is_untouched_and_trains_and_saves_as_before() -> None:
    model, x, y = ready("images")
    twin = copy.deepcopy(model)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    state, attributes = io.BytesIO(), [set(vars(p)) for p in model.parameters()]
    modules = [{**vars(m)} for m in model.modules()]
    clipped_sum(model, loss, x, y, 1.0)
    torch.save(model.state_dict(), state)
    for before, module in zip(modules, model.modules(), strict=True):
        assert vars(module) == before
    assert [set(vars(p)) for p in model.parameters()] == attributes
    assert bool((model[0].weight.grad == 1).all()) and model[3].weight.grad is None
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    assert not any(p._backward_hooks for p in model.parameters())
    model.zero_grad()
    for one in (model, twin):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
        loss(one(x), y).mean().backward()
        optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


class Remembering(nn.Module):
    """Keeps something of every pass, in the way that it is told."""

    def __init__(self, remember: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.layer, self.remember = nn.Linear(4, 3), remember
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.tensor(0))
        self.held: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.remember(self, x)
        return self.layer(x)


def _running_mean(m: Any, x: Tensor) -> None:
    m.mean.mul_(0.9).add_(x.mean(0))


def _new_buffer(m: Any, x: Tensor) -> None:
    m.mean = 0.9 * m.mean + x.mean(0)


def _list(m: Any, x: Tensor) -> None:
    m.held.append(x.mean(0))


def _attribute(m: Any, x: Tensor) -> None:
    m.last = x


def _parameter(m: Any, x: Tensor) -> None:
    m.layer.weight.clamp_(max=1.0)


@pytest.mark.parametrize("remember", [_running_mean, _new_buffer, _list, _attribute, _parameter])
def test_a_model_that_keeps_values_of_the_examples_is_refused(remember: Any) -> None:
    model = Remembering(remember)
    with pytest.raises(ValueError, match=r"is not theirs|changes itself|written to"):
        clipped_sum(model, loss, randn(5, 4), torch.zeros(5, dtype=torch.long), 1.0)
    assert not model.mean.any() and not model.held and not hasattr(model, "last")


def test_what_a_pass_counts_is_put_back() -> None:
    def count(m: Any, x: Tensor) -> None:
        m.seen = m.seen + len(x)
        m.calls = getattr(m, "calls", 0) + 1

    model = Remembering(count)
    seen = model.seen
    clipped_sum(model, loss, randn(5, 4), torch.zeros(5, dtype=torch.long), 1.0)
    assert model.seen is seen and int(seen) == 0 and not hasattr(model, "calls")


def test_random_noise_with_a_parameter_that_has_no_rule_uses_one_draw() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.mix = nn.Parameter(randn(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            y = F.dropout(self.layer(x), 0.5)
            return torch.einsum("bi,ij->bj", y, self.mix)

    model = Noisy()
    x, y = randn(5, 4), randint(0, 3, (5,))
    for _ in range(5):
        gradients, _ = clipped_sum(model, loss, x[:1] * 100, y[:1], 0.1)
        assert float(flat(gradients).norm()) <= 0.1 * (1 + 1e-5)


def test_a_single_example_and_a_single_pair() -> None:
    model, x, y = ready("sequences")
    for size in (1, 2):
        rows, norms = by_graph(model, x[:size], y[:size])
        gradients, got = clipped_sum(model, loss, x[:size], y[:size], 1e6)
        torch.testing.assert_close(got, norms, rtol=1e-4, atol=0)
        wanted = flat({n: r.sum(0) for n, r in rows.items()})
        assert float((flat(gradients) - wanted).norm()) <= 1e-4 * float(wanted.norm())


def test_weight_norm_is_refused_nothing_but_slow() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    x, y = randn(5, 4), randint(0, 3, (5,))
    gradients, _ = clipped_sum(model, loss, x, y, 1.0)
    assert len(gradients) == 3 and all(bool(v.any()) for v in gradients.values())


def test_norm_gradients_follow_a_change_of_requires_grad() -> None:
    model, x, y = ready("small")
    everything, _ = clipped_sum(model, loss, x, y, 1e6)
    model[0].requires_grad_(False)
    some, _ = clipped_sum(model, loss, x, y, 1e6)
    assert set(some) == {"2.weight", "2.bias"}
    torch.testing.assert_close(some["2.weight"], everything["2.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"targets": torch.zeros(7, dtype=torch.long)}, "dimension 0"),
        ({"loss": lambda o, t: o.mean()}, "one value per example"),
        ({"groups": torch.full((8,), 9), "group_count": 4}, "0 … 3"),
        ({"groups": torch.full((8,), -1)}, "group numbers"),
        ({"inputs": "text", "targets": None}, "no tensor"),
        ({"loss": lambda o, t: o.mean()}, r"shape \(8,\), not"),
        ({"round_size": 0}, "round_size must"),
        ({"round_size": 2.5}, "round_size must"),
        ({"round_size": "all"}, "round_size must"),
        ({"counted": -3}, "counted must"),
        ({"counted": 2.5}, "counted must"),
        ({"counted": 1, "groups": torch.zeros(8, dtype=torch.long)}, "goes without groups="),
    ],
)
def test_bad_arguments_are_refused_in_the_users_words(change: dict[str, Any], message: str) -> None:
    model, x, y = ready("small")
    given = {"inputs": x, "targets": y, "clip_norm": 1.0, "loss": loss, **change}
    with pytest.raises((TypeError, ValueError), match=message):
        clipped_sum(model, **given)


def test_what_torch_keeps_no_gradients_of_is_refused() -> None:
    model, x, y = ready("small")
    with torch.inference_mode():
        made = small()
        for call in (clipped_sum, example_losses):
            with pytest.raises(ValueError, match="inference_mode"):
                call(model, loss, x, y, *(1.0,) * (call is clipped_sum))
    with pytest.raises(ValueError, match="inference_mode"):
        clipped_sum(made, loss, x, y, 1.0)


class LastState(nn.Module):
    """The last state of an LSTM, whose batch is in dimension 1: shape (1, B, 8)."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.recurrent, self.alone = nn.LSTM(6, 8), alone

    def forward(self, x: Tensor) -> Tensor:
        if self.alone:
            torch.func.vmap(torch.sin)(x)  # one example at a time
        return self.recurrent(x.transpose(0, 1))[1][0]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.filterwarnings("ignore:.*one example at a time")
def test_a_loss_of_outputs_whose_batch_is_in_dimension_1_is_taken(alone: bool) -> None:
    reseed(0)
    model, x, y = LastState(alone), randn(6, 5, 6), randn(6, 8)
    losses = (
        lambda o, t: (o[-1] - t).square().mean(-1),
        lambda o, t: (o.squeeze(0) - t).square().mean(1),
    )
    for own in losses:
        found, _ = clipped_sum(model, own, x, y, 1e6)
        wanted = torch.autograd.grad(own(model(x), y).sum(), tuple(model.parameters()))
        for one, other in zip(found.values(), wanted, strict=True):
            torch.testing.assert_close(one.float(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "own",
    [
        lambda o, t: (o[-1] - t).square().mean(-1) / len(t),
        lambda o, t: (o[-1] - t).square().mean(),
    ],
    ids=["divided by the batch", "a mean"],
)
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.filterwarnings("ignore:.*one example at a time")
def test_a_loss_that_needs_the_batch_in_dimension_1_is_refused(alone: bool, own: Any) -> None:
    reseed(0)
    with pytest.raises(ValueError, match=r"whole batch|per example"):
        clipped_sum(LastState(alone), own, randn(6, 5, 6), randn(6, 8), 1.0)


def test_a_single_output_of_several_dimensions_is_judged_as_before() -> None:
    reseed(0)

    def divided(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets.unsqueeze(1)).square().sum(1) / len(outputs)

    model = nn.Sequential(nn.Linear(4, 5), nn.Unflatten(1, (1, 5)))
    with pytest.raises(ValueError, match="whole batch"):
        clipped_sum(model, divided, randn(6, 4), randn(6), 1.0)


class Graph(nn.Module):
    """A linear map of neighbours, whose matrix is a sparse buffer that every pass writes to."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        dense = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]])
        self.register_buffer("edges", getattr(dense, kind)())
        self.grows = False

    def forward(self, x: Tensor) -> Tensor:
        if self.grows:
            coo = self.edges.layout is torch.sparse_coo
            (self.edges._values() if coo else self.edges.values()).mul_(2)
        rows = [torch.mm(self.edges, one) for one in self.layer(x)]
        return torch.stack(rows)


@pytest.mark.parametrize("kind", ["clone", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.filterwarnings("ignore")
def test_sparse_buffers_are_compared_and_put_back(kind: str) -> None:
    reseed(0)
    model, x, y = Graph(kind), randn(5, 3, 4), torch.zeros(5)
    _, norms = clipped_sum(model, squares, x, y, 1.0)
    plain = Graph("clone")
    plain.layer.load_state_dict(model.layer.state_dict())
    _, wanted = clipped_sum(plain, squares, x, y, 1.0)
    torch.testing.assert_close(norms, wanted, rtol=1e-4, atol=1e-6)
    if kind == "clone":
        return
    model.grows, before = True, model.edges.to_dense()
    with contextlib.suppress(ValueError):  # a model that changes itself may be refused
        clipped_sum(model, squares, x, y, 1.0)
    assert torch.equal(model.edges.to_dense(), before)


def test_float_groups_are_refused() -> None:
    model, x, y = ready("small")
    with pytest.raises(TypeError, match="LongTensor"):
        clipped_sum(model, loss, x, y, 1.0, groups=torch.zeros(8))


def test_a_fully_frozen_model_is_refused() -> None:
    model, x, y = ready("small")
    with pytest.raises(ValueError, match="requires_grad"):
        clipped_sum(model.requires_grad_(False), loss, x, y, 1.0)


@pytest.mark.parametrize(("groups", "channels"), [(1, 12), (3, 12)])
def test_convolution_gradients_do_not_depend_on_how_many_are_written_at_a_time(
    monkeypatch: pytest.MonkeyPatch, groups: int, channels: int
) -> None:
    image, gradient = randn(5, channels, 6, 6), randn(5, 9, 6, 6)
    window = sums.Window((3, 3), (1, 1), (1, 1), (1, 1))
    term = sums.Convolved(image, gradient, window, groups)
    whole = term.rows()
    monkeypatch.setattr(sums, "EXAMPLES", 2)
    torch.testing.assert_close(term.rows(), whole)
    summed = term.weighted(torch.ones(5)).float()
    torch.testing.assert_close(term.rows().sum(0), summed)


class OwnLoss(nn.Module):
    """A model that computes its own loss, one number for its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.drop(self.layer(x))
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}


def test_a_model_that_computes_its_own_loss_has_one_for_each_example() -> None:
    reseed(0)
    model, x, y = OwnLoss(), randn(6, 4), randint(0, 3, (6,))
    inputs = {"x": x, "labels": y}
    _, norms = clipped_sum(model, lambda o, t: o["loss"], inputs, y, 1.0)
    _, wanted = clipped_sum(model.layer, loss, x, y, 1.0)
    torch.testing.assert_close(norms, wanted, rtol=1e-4, atol=0)
    values = example_losses(model, lambda o, t: o["loss"], inputs, y)
    torch.testing.assert_close(values, loss(model.layer(x), y), rtol=1e-5, atol=1e-6)


def test_losses_of_examples_that_take_different_ways_or_go_alone() -> None:
    reseed(0)
    x, y = randn(6, 4), randint(0, 3, (6,))

    class Branches(nn.Module):
        def __init__(self, slow: bool) -> None:
            super().__init__()
            self.layer, self.slow = nn.Linear(4, 3), slow

        def forward(self, x: Tensor) -> Tensor:
            if self.slow:
                torch.func.vmap(torch.sin)(x)
                torch.linalg.solve(torch.eye(1), x[:, :1])
            return self.layer(x) if bool(x.sum() > 0) else -self.layer(x)

    for slow in (False, True):
        model = Branches(slow)
        wanted = torch.cat([loss(model(x[i : i + 1]), y[i : i + 1]) for i in range(6)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = example_losses(model, loss, x, y)
        assert bool(caught) == slow
        torch.testing.assert_close(values, wanted.detach(), rtol=1e-5, atol=1e-6)
        assert not values.requires_grad
    assert example_losses(model, loss, x[:0], y[:0]).shape == (0,)


def _cached(m: Any, x: Tensor) -> Tensor:
    m.seen_of(round(float(x.sum()), 3))
    return x * len(m.calls)


def _on_a_parameter(m: Any, x: Tensor) -> Tensor:
    before, m.layer.weight.tag = getattr(m.layer.weight, "tag", 0.0), float(x.mean())
    return x + before


_VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("_VARIABLE", default=0.0)


def _in_context(m: Any, x: Tensor) -> Tensor:
    before = _VARIABLE.get()
    _VARIABLE.set(float(x.mean()))
    return x + before


@pytest.mark.parametrize("remember", [_cached, _on_a_parameter, _in_context])
def test_what_python_remembers_of_one_example_does_not_reach_another(remember: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 3), [0]
            self.seen_of = functools.lru_cache(self.calls.append)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(remember(self, x))

    reseed(0)
    model, x, y = Model(), randn(6, 4), randint(0, 3, (6,))
    other = x.clone()
    other[2] *= -30
    norms = [clipped_sum(model, loss, inputs, y, 1.0)[1] for inputs in (x, other, x)]
    keep = [0, 1, 3, 4, 5]
    torch.testing.assert_close(norms[0][keep], norms[1][keep], rtol=1e-4, atol=0)
    torch.testing.assert_close(norms[0], norms[2], rtol=1e-4, atol=0)
    assert model.calls == [0] and not hasattr(model.layer.weight, "tag")

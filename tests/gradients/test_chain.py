"""Chains of linear layers take the direct way, and the result is that of one example at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drawn import randn, reseed
from forethought.gradients import clipped, clipped_sum, sums
from forethought.gradients.sums import CHARGE
from forethought.rounds.contributions import cross_entropy


def user_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def one_at_a_time(
    model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor, clip_norm: float
) -> tuple[dict[str, Tensor], Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trained.items()}
    norms = []
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        found = torch.autograd.grad(value, tuple(trained.values()), materialize_grads=True)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in found))
        norms.append(norm)
        for name, gradient in zip(trained, found, strict=True):
            totals[name] += gradient.double() * min(1.0, clip_norm * (1 - CHARGE) / norm)
    return totals, torch.tensor(norms)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the direct way gave an answer, call by call."""
    answered: list[bool] = []
    uses_of = clipped.uses_of

    def counted(*arguments: Any) -> Any:
        found = uses_of(*arguments)
        answered.append(found is not None)
        return found

    monkeypatch.setattr(clipped, "uses_of", counted)
    return answered


def agree(
    model: nn.Module,
    loss: Any,
    inputs: Tensor,
    targets: Tensor,
    clip_norm: float = 0.7,
    rtol: float = 1e-5,
) -> None:
    expected, true_norms = one_at_a_time(model, loss, inputs, targets, clip_norm)
    for _ in range(2):  # the first call of a loss that is not ours judges it
        found, norms = clipped_sum(model, loss, inputs, targets, clip_norm)
        assert list(found) == list(expected)
        torch.testing.assert_close(norms.double(), true_norms.double(), rtol=rtol, atol=1e-12)
        for name in found:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)


def data(*shape: int, examples: int = 12) -> tuple[Tensor, Tensor]:
    reseed(0)
    return randn(examples, *shape), torch.arange(examples) % 3


def deep(*between: nn.Module) -> nn.Module:
    reseed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 8), *between, nn.Linear(8, 3))


CHAINS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(20, 3),
    "without bias": lambda: nn.Linear(20, 3, bias=False),
    "relu in place": lambda: deep(nn.ReLU(inplace=True)),
    "nested": lambda: deep(nn.Sequential(nn.Tanh(), nn.Identity()), nn.Linear(8, 8), nn.GELU()),
    "others": lambda: deep(nn.SiLU(), nn.Softplus(2.0), nn.ELU(0.5), nn.LeakyReLU(0.3)),
    "sigmoid": lambda: deep(nn.Sigmoid(), nn.Dropout(0.0)),
    "dropout in evaluation": lambda: deep(nn.Tanh(), nn.Dropout(0.5)).eval(),
    "frozen in front": lambda: _frozen(deep(nn.Tanh()), "1.weight", "1.bias"),
    "frozen weight": lambda: _frozen(deep(nn.Tanh()), "1.weight"),
}


def _frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


@pytest.mark.parametrize("loss", [cross_entropy, user_loss, nn.CrossEntropyLoss(reduction="none")])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_computed_directly(taken: list[bool], name: str, loss: Any) -> None:
    for dtype in (torch.float32, torch.float64):
        taken.clear()
        inputs, targets = data(20)
        agree(CHAINS[name]().to(dtype), loss, inputs.to(dtype), targets)
        assert taken == [loss is not user_loss, True]


def test_labels_that_the_loss_ignores_keep_their_meaning(taken: list[bool]) -> None:
    inputs, targets = data(20)
    targets[3] = -100
    _, norms = clipped_sum(CHAINS["linear"](), cross_entropy, inputs, targets, 0.5)
    assert taken == [True] and float(norms[3]) < 1e-12 and bool((norms[4:] > 0).all())
    targets[3] = 7
    with pytest.raises((IndexError, RuntimeError)):
        clipped_sum(CHAINS["linear"](), cross_entropy, inputs, targets, 0.5)


def test_many_positions_of_one_example(taken: list[bool]) -> None:
    model = nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.Flatten(), nn.Linear(24, 3)
    )
    agree(model, user_loss, *data(6, 5))
    assert any(taken)


@pytest.mark.parametrize("rule", [sums.automatic(0.1), sums.per_layer()])
def test_other_rules_and_long_batches_take_the_general_sum(rule: Any) -> None:
    model, (inputs, targets) = deep(nn.Tanh()), data(20, examples=600)
    given = [clipped.uses_of(model, cross_entropy, inputs, targets, dict(model.named_parameters()))]
    found, norms = clipped_sum(model, cross_entropy, inputs, targets, 0.5, clip=rule)
    wanted, other = sums.clip_and_sum(
        clipped.as_terms(given[0], dict(model.named_parameters()), 600),
        dict(model.named_parameters()),
        0.5,
        rule,
    )
    assert torch.equal(norms, other)
    assert all(torch.equal(found[name], wanted[name]) for name in found)


@pytest.mark.parametrize("examples", [1, 64, 250, 1000, 6000])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 1e3])
def test_the_short_sum_is_the_general_one(examples: int, clip_norm: float) -> None:
    model, (inputs, targets) = deep(nn.Tanh()), data(20, examples=examples)
    trained = dict(model.named_parameters())
    uses = clipped.uses_of(model, cross_entropy, inputs, targets, trained)
    [short] = sums.clip_and_sum_once(uses, clip_norm, None)
    terms = clipped.as_terms(uses, trained, examples)
    wanted, norms = sums.clip_and_sum(terms, trained, clip_norm)
    torch.testing.assert_close(short[1], norms, rtol=1e-6, atol=0)
    for name in trained:
        error = float((short[0][name] - wanted[name]).norm())
        assert error <= clip_norm * CHARGE / 2


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_numbers_out_of_range_are_left_to_the_general_sum(value: float) -> None:
    model, (inputs, targets) = deep(nn.ReLU()), data(20)
    clean, _ = clipped_sum(model, cross_entropy, inputs[1:], targets[1:], 0.5)
    inputs[0, 0] = value
    found, norms = clipped_sum(model, cross_entropy, inputs, targets, 0.5)
    moved = torch.cat([(found[n] - clean[n]).flatten() for n in found]).norm()
    assert float(moved) <= (0.5 if value == 1e30 else 1e-6)
    assert bool(torch.isfinite(norms[1:]).all())


def test_the_short_sum_refuses_what_its_bound_does_not_cover() -> None:
    uses = [sums.SingleUseLinear(torch.ones(30_000, 2), torch.ones(30_000, 3), "w", None)]
    assert sums.clip_and_sum_once(uses, 1.0, None) is None  # gradients are rounded in float32
    wide = [sums.SingleUseLinear(torch.ones(600, 200), torch.ones(600, 100), "w", None)]
    assert sums.clip_and_sum_once(wide, 1.0, None) is None  # too much in float64
    few = [sums.SingleUseLinear(torch.ones(30, 2), torch.ones(30, 3), "w", None)]
    assert sums.clip_and_sum_once(few, 1.0, None) is not None
    assert sums.clip_and_sum_once(few, 1.0, 10**6) is None  # a small piece of a long round
    assert sums.clip_and_sum_once(few, 2.0**-70, None) is None
    many = [sums.SingleUseLinear(torch.full((3, 2), 1e30), torch.ones(3, 3), "w", None)]
    assert sums.clip_and_sum_once(many, 1.0, None) is None


def test_a_short_sum_that_is_too_long_for_float32_is_formed_in_float64() -> None:
    draw = torch.Generator().manual_seed(3)
    inputs, gradients = (torch.rand(4000, n, generator=draw) + 1 for n in (3, 2))
    uses = [sums.SingleUseLinear(inputs, gradients, "w", "b")]
    [found] = sums.clip_and_sum_once(uses, 1000.0, None)  # no norm reaches the bound
    exact = gradients.double().t() @ inputs.double()
    torch.testing.assert_close(found[0]["w"], exact, rtol=1e-13, atol=0)
    torch.testing.assert_close(found[0]["b"], gradients.double().sum(0), rtol=1e-13, atol=0)


@pytest.mark.parametrize("rows", [20, 300])
def test_more_contributions_than_the_round_has_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="round_size"):
        clipped_sum(nn.Linear(5, 3), cross_entropy, *data(5, examples=rows), 1.0, round_size=10)


def test_a_loss_that_uses_the_weights_is_not_cut_short(taken: list[bool]) -> None:
    model = nn.Linear(5, 3)

    def ridge(outputs: Tensor, targets: Tensor) -> Tensor:
        return user_loss(outputs, targets) + 0.1 * model.weight.square().sum()

    agree(model, ridge, *data(5))
    assert not any(taken)


def test_a_branch_of_the_loss_on_an_example_is_not_cut_short(taken: list[bool]) -> None:
    def branching(outputs: Tensor, targets: Tensor) -> Tensor:
        values = user_loss(outputs, targets)
        return values * 2 if bool((outputs.amax() > 0.4).all()) else values

    agree(nn.Linear(5, 3), branching, *data(5))
    assert not any(taken)


def test_a_loss_that_mixes_is_never_run_on_the_batch() -> None:
    model, (inputs, targets) = nn.Linear(5, 3), data(5)
    clipped_sum(model, user_loss, inputs, targets, 1.0)
    seen = []

    def spying(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(tuple(outputs.shape))
        return user_loss(outputs, targets)

    clipped_sum(model, spying, inputs, targets, 1.0)  # judged once on all, without gradients
    seen.clear()
    clipped_sum(model, spying, inputs, targets, 1.0)
    assert seen == [(1, 3)]


@pytest.mark.slow
def test_a_loss_that_keeps_what_it_saw_is_left_to_the_general_way() -> None:
    model, (inputs, targets) = nn.Linear(5, 3), data(5)
    kept: list[Tensor] = []

    def hoarding(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad or len(outputs) == 1:
            kept.append(outputs * 2)
        return user_loss(outputs, targets)

    for _ in range(2):
        with pytest.raises(ValueError, match="keeps values"):
            clipped_sum(model, hoarding, inputs, targets, 1.0)
        kept.clear()


class _Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _patched() -> nn.Module:
    layer = nn.Linear(5, 3)
    layer.forward = lambda x: F.linear(x, layer.weight * 3, layer.bias)
    return layer


def _hooked() -> nn.Module:
    layer = nn.Linear(5, 3)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return layer


class _Tied(nn.Sequential):
    pass


def _shared() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(5, 3))


@pytest.mark.parametrize(
    "make",
    [
        _hooked,
        lambda: _Doubled(5, 3),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)),
        _patched,
        _shared,
        lambda: _Tied(nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
    ],
    ids=["hook", "subclass", "parametrisation", "patched", "shared", "container", "other layer"],
)
def test_what_could_change_a_layer_takes_the_general_way(
    taken: list[bool], make: Callable[[], nn.Module]
) -> None:
    reseed(2)
    agree(make(), cross_entropy, *data(5))
    assert not any(taken)


def test_dropout_modes_and_autocast_take_the_general_way(taken: list[bool]) -> None:
    inputs, targets = data(20)
    clipped_sum(deep(nn.Dropout(0.5)).train(), cross_entropy, inputs, targets, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        clipped_sum(deep(nn.Tanh()), cross_entropy, inputs, targets, 1.0)
    with torch.device("cpu"):  # a mode that sees every torch function
        clipped_sum(deep(nn.Tanh()), cross_entropy, inputs, targets, 1.0)
    assert not any(taken)


def test_hooks_on_saved_tensors_take_the_general_way_which_refuses_them(taken: list[bool]) -> None:
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value)
    with hooks, pytest.raises(ValueError, match="on saved tensors"):
        clipped_sum(deep(nn.Tanh()), cross_entropy, *data(20), 1.0)
    assert not any(taken)


def test_a_forgotten_bias_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    uses_of = clipped.uses_of

    def forgetful(*arguments: Any) -> Any:
        return [
            sums.SingleUseLinear(use.inputs, use.gradients, use.weight, None)
            for use in uses_of(*arguments)
        ]

    monkeypatch.setattr(clipped, "uses_of", forgetful)
    with pytest.raises(AssertionError):
        agree(nn.Linear(5, 3), cross_entropy, *data(5))


@pytest.mark.parametrize("loss", [cross_entropy, user_loss])
@pytest.mark.parametrize(
    "bias",
    [
        lambda: randn(300, 2)[:, 0],
        lambda: randn(1).expand(300),
        lambda: randn(1),
        lambda: randn(1, 300),
    ],
    ids=["strided", "expanded", "of one number", "with a dimension in front"],
)
def test_a_large_layer_with_a_bias_of_its_own_form(bias: Callable[[], Tensor], loss: Any) -> None:
    reseed(3)
    model = nn.Sequential(nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 3))
    model[0].bias = nn.Parameter(bias())
    agree(model, loss, *data(200), rtol=1e-4)


@pytest.mark.parametrize("loss", [cross_entropy, user_loss])
@pytest.mark.filterwarnings("ignore:.*one example at a time")
def test_inputs_of_another_width_are_refused_in_torchs_words(loss: Any) -> None:
    model = nn.Sequential(nn.Linear(400, 300), nn.Tanh(), nn.Linear(300, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        clipped_sum(model, loss, *data(200), 1.0)

"""A rule of one's own, and what happens when a rule is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drawn import randn, reseed
from forethought.gradients import (
    Dense,
    Outer,
    Rule,
    SlowGradientsWarning,
    Term,
    Use,
    clipped_sum,
    explain,
)
from forethought.gradients.sums import CHARGE
from forethought.gradients.vmap_mode import RULES, register


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.unsqueeze(1)).square().sum(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.layer(x)))


def expected(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    values = squares(model(x), y)
    names, parameters = zip(*model.named_parameters(), strict=True)
    rows = [torch.autograd.grad(v, parameters, retain_graph=True) for v in values]
    norms = torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in rows])
    factors = (float(norms.median()) * (1 - CHARGE) / norms).clamp(max=1)
    sums = [
        sum(f * row[i] for f, row in zip(factors, rows, strict=True)) for i in range(len(names))
    ]
    return {"norm": norms.median(), **dict(zip(names, sums, strict=True))}


def close(model: nn.Module, x: Tensor, y: Tensor) -> bool:
    wanted = expected(model, x, y)
    got, _ = clipped_sum(model, squares, x, y, float(wanted.pop("norm")))
    return all(
        torch.allclose(got[n].to(wanted[n].dtype), wanted[n], rtol=1e-4, atol=1e-5) for n in wanted
    )


def _rows(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], -1, values.shape[-1])


def _forgets_the_bias(use: Use) -> Iterator[tuple[str, Term]]:
    yield "weight", Outer([(_rows(use.gradient), _rows(use.saved["input"]))])


def _bias_of_the_last_position(use: Use) -> Iterator[tuple[str, Term]]:
    yield "weight", Outer([(_rows(use.gradient), _rows(use.saved["input"]))])
    yield "bias", Dense(_rows(use.gradient)[:, -1])


def _wrong_shape(use: Use) -> Iterator[tuple[str, Term]]:
    yield "weight", Outer([(_rows(use.saved["input"]), _rows(use.gradient))])
    yield "bias", Dense(_rows(use.gradient).sum(1))


@pytest.fixture
def linear_rule(request: pytest.FixtureRequest) -> Iterator[None]:
    kept = RULES[F.linear]
    parameters = ("input", "weight", "bias"), ("weight", "bias"), ("input",)
    register(Rule("linear", *parameters, request.param), F.linear)
    yield
    register(kept, F.linear)


def _raises(use: Use) -> Iterator[tuple[str, Term]]:
    raise KeyError("nothing here")
    yield "weight", Dense(use.gradient)


UNFIT = [_forgets_the_bias, _wrong_shape, _raises]


@pytest.mark.parametrize("linear_rule", UNFIT, indirect=True)
@pytest.mark.usefixtures("linear_rule")
def test_a_rule_that_fails_is_named_and_not_used() -> None:
    model, x, y = Net(), randn(5, 3, 4), randn(5)
    with pytest.warns(SlowGradientsWarning, match=r"rule 'linear' failed"):
        assert close(model, x, y)


def _off_by_little(use: Use) -> Iterator[tuple[str, Term]]:
    yield "weight", Outer([(_rows(use.gradient) * 1.0005, _rows(use.saved["input"]))])
    yield "bias", Dense(_rows(use.gradient).sum(1))


@pytest.mark.parametrize("linear_rule", [_bias_of_the_last_position, _off_by_little], indirect=True)
@pytest.mark.usefixtures("linear_rule")
def test_the_comparison_with_autograd_catches_a_mistaken_rule() -> None:
    model, x, y = Net(), randn(5, 3, 4), randn(5)
    assert not close(model, x, y)


def test_a_rule_for_a_function_of_ones_own() -> None:
    def scaled_shift(input: Tensor, scale: Tensor) -> Tensor:
        if torch.overrides.has_torch_function((input, scale)):
            return torch.overrides.handle_torch_function(scaled_shift, (input, scale), input, scale)
        return input * scale.exp()

    def gradients(use: Use) -> Iterator[tuple[str, Term]]:
        product = use.gradient * use.saved["input"] * use.parameters["scale"].exp()
        yield "scale", Dense(use.reduced(product, "scale"))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.out = nn.Parameter(randn(4)), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(scaled_shift(x, self.scale))

    register(
        Rule("scaled shift", ("input", "scale"), ("scale",), ("input",), gradients), scaled_shift
    )
    try:
        model, x, y = Model(), randn(5, 3, 4), randn(5)
        assert close(model, x, y)
        rows = {row.parameter: row for row in explain(model, x)}
        assert rows["scale"].rules == "scaled shift"
    finally:
        del RULES[scaled_shift]


def test_a_rule_for_a_recurrent_cell_goes_before_its_steps() -> None:
    calls: list[Use] = []

    def gradients(use: Use) -> Iterator[tuple[str, Term]]:
        calls.append(use)
        x, h = use.saved["input"], use.saved["hx"]
        w, v, a, b = (use.parameters[name] for name in names[2:])
        inner = use.gradient * (1 - torch.tanh(F.linear(x, w, a) + F.linear(h, v, b)).square())
        yield "w_ih", Dense(inner.mT @ x)
        yield "w_hh", Dense(inner.mT @ h)
        yield "b_ih", Dense(inner.sum(1))
        yield "b_hh", Dense(inner.sum(1))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.RNNCell(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(x)

    names = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")
    register(Rule("own cell", names, names[2:], names[:2], gradients), torch.rnn_tanh_cell)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowGradientsWarning)
            assert close(Model(), randn(5, 4), randn(5)) and calls
    finally:
        del RULES[torch.rnn_tanh_cell]


def test_registering_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="function"):
        register(RULES[F.linear])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_has_torchs_own_epsilon_in_low_precision(dtype: torch.dtype) -> None:
    reseed(0)
    model = nn.Sequential(nn.RMSNorm(6)).to(dtype)
    x = (randn(4, 6) * 0.01).to(dtype)

    def loss(outputs: torch.Tensor, _: Any) -> torch.Tensor:
        return outputs.float().square().sum(1)

    (wanted,) = torch.autograd.grad(loss(model(x), None).sum(), [*model.parameters()])
    sums, _ = clipped_sum(model, loss, x, torch.zeros(4), 1e9)
    torch.testing.assert_close(sums["0.weight"].float(), wanted.float(), rtol=0.03, atol=0.03)

"""autograd.Functions that models bring along: their backward is user code, and must stay apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from adversaries.attack import Attack, Attacks, D, Run, classify, head, withstand
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from drawn import randn

attack = Attacks()
Function = torch.autograd.Function


def between(function: Any) -> Any:
    """A model with a function between two layers."""
    model = Run(
        lambda self, x: self.head(function(self.body(x))), head=head(), body=nn.Linear(D, D)
    )
    return model, classify


class Squared(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Attributes(Function):
    """Keeps tensors and numbers of the example in attributes, as older code does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.positive = x > 0
        ctx.scale = float(x.abs().max())
        return x * ctx.positive / ctx.scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.positive / ctx.scale


class Affine(Function):
    """A layer with gradients of its own for its weight and bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x, gradient.sum(0)


class AffineNew(Function):
    """The same with setup_context, and only what is needed."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x @ weight.t() + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        into = gradient @ weight if ctx.needs_input_grad[0] else None
        of_weight = gradient.t() @ x if ctx.needs_input_grad[1] else None
        return into, of_weight, gradient.sum(0) if ctx.needs_input_grad[2] else None


class MeanOverTheBatch(Function):
    """Mixes in both directions: alone, a mean over one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 5 * x.mean(0, keepdim=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + 5 * gradient.mean(0, keepdim=True)


class Branching(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2 if bool(x.sum() > 0) else x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if bool(gradient.abs().max() > 0.2):
            gradient = gradient / gradient.abs().max() * 0.2
        return gradient * 2 if bool(x.sum() > 0) else gradient


class NumberOfTheGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / (1 + float(gradient.norm()))


class Leaking(Function):
    """Leaves the gradient of one example where the next one's backward finds it."""

    kept: list[Tensor] = []  # noqa: RUF012 (shared on purpose)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        before = Leaking.kept[-1].mean() if Leaking.kept else 0.0
        Leaking.kept.append(gradient)
        return gradient + before


class Twofold(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Any:
        ctx.factor = factor
        ctx.set_materialize_grads(False)
        return x * factor, x.sign()

    @staticmethod
    def backward(ctx: Any, of_product: Tensor | None, of_sign: Tensor | None) -> Any:
        total = None if of_product is None else of_product * ctx.factor
        if of_sign is not None:  # straight through
            total = of_sign if total is None else total + of_sign
        return total, None


class Marked(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        order = x.argsort(1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return x.gather(1, order), order

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(1, order, gradient)


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class InPlaceBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient *= 2
        return gradient


class SavesItsOutput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


class ReturnsItsInput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Hooking(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if gradient.grad_fn is not None:
            gradient.register_hook(lambda g: g * 2)
        return gradient


class Drawing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = (torch.rand_like(x) > 0.5).to(x)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


class DrawingBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.rand_like(gradient)


class Sparse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x[x > 0].sum().reshape(1, 1).expand(1, D)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (x > 0).to(gradient) * gradient.sum()


class InnerAutograd(Function):
    """Differentiates inside backward, as checkpointing and implicit layers do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.tanh(x) * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = torch.tanh(x) * x
        return torch.autograd.grad(y, x, gradient)[0]


for kind in (
    Squared, Attributes, MeanOverTheBatch, Branching, NumberOfTheGradient, SavesItsOutput,
    ReturnsItsInput, Sparse, InnerAutograd, InPlaceBackward, Hooking,
):  # fmt: skip
    attack[kind.__name__] = Attack(lambda kind=kind: between(kind.apply), "apart")
attack["InPlace"] = Attack(lambda: between(lambda y: InPlace.apply(y * 1.0)), "apart")
attack["Leaking"] = Attack(lambda: between(Leaking.apply), "either")
attack["Drawing"] = Attack(lambda: between(Drawing.apply), "isolated", draws=True)
attack["DrawingBackward"] = Attack(lambda: between(DrawingBackward.apply), "isolated", draws=True)


@attack("apart")
def used_before_the_pass_by_another_name() -> Any:
    squared = Squared.apply
    return between(lambda y: squared(squared(y) * 0.1))


@attack("apart")
def with_two_results() -> Any:
    return between(lambda y: sum(Twofold.apply(y, 1.5)))


@attack("apart")
def with_one_result_unused() -> Any:
    return between(lambda y: Twofold.apply(y, 1.5)[1])


@attack("apart")
def with_a_result_that_has_no_gradient() -> Any:
    return between(lambda y: Marked.apply(y)[0])


@pytest.mark.parametrize("kind", [Affine, AffineNew])
def test_a_layer_of_its_own(kind: Any) -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        return self.head(torch.tanh(kind.apply(x, self.weight, self.bias)))

    def make() -> Any:
        model = Run(forward, head=head(), weight=randn(D, D), bias=randn(D))
        return model, classify

    withstand(Attack(make, "apart"))


@attack("apart")
def a_layer_of_its_own_whose_bias_is_frozen() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        return self.head(AffineNew.apply(x, self.weight, self.bias))

    model = Run(forward, head=head(), weight=randn(D, D), bias=randn(D))
    model.bias.requires_grad_(False)
    return model, classify


@attack("apart")
def a_layer_of_its_own_with_a_derived_weight() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        return self.head(Affine.apply(x, self.weight.exp() * 0.1, self.bias))

    return Run(forward, head=head(), weight=randn(D, D), bias=randn(D)), classify


@attack("apart")
def without_gradients() -> Any:
    def frozen(y: Tensor) -> Tensor:
        with torch.no_grad():
            shift = Squared.apply(y)
        return y + shift

    return between(frozen)


@attack("apart")
def on_the_records_alone() -> Any:
    return Run(lambda self, x: self.head(Squared.apply(x)), head=head()), classify


@attack("apart")
def inside_a_checkpoint() -> Any:
    return between(lambda y: checkpoint(Squared.apply, y, use_reentrant=False))


@attack("apart")
def after_a_branch() -> Any:
    return between(lambda y: Squared.apply(y if bool(y.sum() > 0) else y * 2))


@attack("apart")
def before_a_branch() -> Any:
    def late(y: Tensor) -> Tensor:
        z = Squared.apply(y)
        return z if bool(z.sum() > 3) else z * 2

    return between(late)


@attack("apart")
def inside_another() -> Any:
    class Outer(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return Squared.apply(x) * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 4 * ctx.saved_tensors[0] * gradient

    return between(Outer.apply)


@attack("apart")
def in_a_loss_with_numbers() -> Any:
    class Clamped(Function):
        @staticmethod
        def forward(ctx: Any, values: Tensor) -> Tensor:
            ctx.small = values.detach() < 1
            return values.clamp(max=1)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * ctx.small.to(gradient)

    return head(), lambda outputs, targets: Clamped.apply(classify(outputs, targets))


@attack("apart")
def activation_of_a_convolution() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        h = F.conv1d(x.unsqueeze(1), self.kernel, padding=1)
        return self.head(Squared.apply(h).mean(1))

    return Run(forward, head=head(), kernel=randn(4, 1, 3)), classify


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", attack.parameters())
def test_own_function(attack: Attack) -> None:
    Leaking.kept.clear()
    withstand(attack)

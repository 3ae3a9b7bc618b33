"""User code that would run in the backward pass, or that torch's transforms do not keep apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from adversaries.attack import Attack, Attacks, D, Run, classify, head, vectors, withstand
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from drawn import randn
from forethought.gradients import clipped_sum

attack = Attacks()
# Other files import this one under another name. Torch takes a second operator of one name for the
# end of the first one, and a call of that one can then crash.
SPACE = __name__.replace(".", "_")
OPERATORS = getattr(torch.ops, SPACE)


def mixed(gradient: Tensor) -> Tensor:
    return gradient + 5 * gradient.mean(0, keepdim=True)


def between(function: Any) -> Any:
    """A model with something between two layers."""
    model = Run(
        lambda self, x: self.head(function(self.body(x))), head=head(), body=nn.Linear(D, D)
    )
    return model, classify


@attack("refused")
def hook_on_a_tensor() -> Any:
    def hooked(y: Tensor) -> Tensor:
        y.register_hook(mixed)
        return y

    return between(hooked)


@attack("refused")
def hook_on_a_tensor_that_needs_gradients() -> Any:
    def hooked(y: Tensor) -> Tensor:
        if y.requires_grad:
            y.register_hook(mixed)
        return y

    return between(hooked)


@attack("refused")
def hook_on_a_node_of_the_graph() -> Any:
    def hooked(y: Tensor) -> Tensor:
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: (mixed(gradients[0]),))
        return y

    return between(hooked)


@attack("refused")
def backward_hook_of_a_module() -> Any:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), head())
    model[1].register_full_backward_hook(lambda module, into, out: (mixed(into[0]),))
    return model, classify


@attack("either")
def backward_hook_of_the_loss() -> Any:
    loss = nn.CrossEntropyLoss(reduction="none")
    loss.register_full_backward_hook(
        lambda module, into, out: tuple(None if g is None else mixed(g) for g in into)
    )
    return head(), loss


@attack("refused")
def hook_of_a_parameter() -> Any:
    model = head()
    model.weight.register_hook(mixed)
    return model, classify


@attack("refused")
def hook_after_accumulation() -> Any:
    model = head()
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model, classify


@attack("refused")
def hook_of_several_parameters() -> Any:
    model = head()
    torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), lambda gradients: None)
    return model, classify


@attack("refused")
def hook_on_a_tensor_made_of_parameters() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        weight = self.weight.exp()
        weight.register_hook(mixed)
        return F.linear(x, weight)

    return Run(forward, weight=randn(3, D)), classify


def unpacked(saved: Tensor) -> Tensor:
    return mixed(saved) if saved.dim() > 1 and saved.is_floating_point() else saved


@attack("refused")
def hooks_on_saved_tensors() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpacked):
            return self.head(torch.tanh(self.body(x)).square())

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@attack("refused")
def hooks_on_saved_tensors_in_a_checkpoint() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        def part(h: Tensor) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpacked):
                return torch.tanh(self.body(h)).square()

        return self.head(checkpoint(part, x, use_reentrant=False))

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


class Mixing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return mixed(gradient)


class MixingUnderVmap(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return mixed(x), in_dims[0]


class Generated(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return mixed(gradient)


class Kept(torch.autograd.Function):
    last = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        before, Kept.last = Kept.last, 5 * float(gradient.abs().mean())
        return gradient + before


@attack("apart")
def own_function_that_mixes_in_backward() -> Any:
    return between(Mixing.apply)


@attack("apart")
def own_function_with_a_mixing_vmap_rule() -> Any:
    return between(MixingUnderVmap.apply)


@attack("apart")
def own_function_with_a_generated_vmap_rule() -> Any:
    return between(Generated.apply)


@attack("either")
def own_function_that_remembers_in_backward() -> Any:
    return between(Kept.apply)


@attack("either")
def own_function_that_remembers_of_parameters() -> Any:
    model = Run(lambda self, x: F.linear(x, Kept.apply(self.weight)), weight=randn(3, D))
    return model, classify


@attack("apart")
def own_function_in_the_loss() -> Any:
    return head(), lambda outputs, targets: classify(MixingUnderVmap.apply(outputs), targets)


@torch.library.custom_op(f"{SPACE}::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op(f"{SPACE}::twice_mixed", mutates_args=())
def twice_mixed(x: Tensor) -> Tensor:
    return x * 2


twice.register_autograd(lambda ctx, gradient: mixed(gradient))
twice_mixed.register_autograd(lambda ctx, gradient: gradient * 2)
twice_mixed.register_vmap(lambda info, in_dims, x: (mixed(x), in_dims[0]))


@attack("either")
def operator_that_mixes_in_backward() -> Any:
    return between(twice)


@attack("either")
def operator_with_a_mixing_vmap_rule() -> Any:
    return between(twice_mixed)


@attack("either")
def operator_by_its_name() -> Any:
    return between(lambda y: OPERATORS.twice_mixed(y))


@attack("either")
def overload_of_an_operator() -> Any:
    return between(lambda y: OPERATORS.twice_mixed.default(y))


@attack("either")
def operator_on_the_records_alone() -> Any:
    return Run(lambda self, x: self.head(twice_mixed(x)), head=head()), classify


def kept_by(operator: Any) -> Any:
    Remembered.value = 0.0
    return Run(lambda self, x: self.head(operator(x)), head=head()), classify


class Remembered:
    value = 0.0


def shifted_by_the_last(x: Tensor) -> Tensor:
    shifted, Remembered.value = x + Remembered.value, float(x.mean())
    return shifted


@torch.library.custom_op(f"{SPACE}::kernel", mutates_args=())
def kernel(x: Tensor) -> Tensor:
    raise NotImplementedError


@kernel.register_kernel("cpu")
def _(x: Tensor) -> Tensor:
    return shifted_by_the_last(x)


@torch.library.custom_op(f"{SPACE}::backward", mutates_args=())
def backward(x: Tensor) -> Tensor:
    return x * 1.0


backward.register_autograd(lambda ctx, gradient: shifted_by_the_last(gradient))

LIBRARY = torch.library.Library(SPACE, "FRAGMENT")
LIBRARY.define("library(Tensor x) -> Tensor")
LIBRARY.impl("library", shifted_by_the_last, "CPU")


@attack("either")
def operator_that_remembers_in_a_kernel() -> Any:
    return kept_by(kernel)


@attack("either")
def operator_that_remembers_in_backward() -> Any:
    Remembered.value = 0.0
    return between(backward)


@attack("either")
def operator_by_its_name_that_remembers() -> Any:
    return kept_by(lambda x: OPERATORS.kernel(x))


@attack("refused")
def operator_of_a_library_that_remembers() -> Any:
    return kept_by(lambda x: OPERATORS.library(x))


class Int8(TorchDispatchMode):
    """Rounds every product's inputs to 8 bits of the largest number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def rounded(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            scale = value.abs().max().clamp(min=1e-9) / 7
            return (value / scale).round() * scale

        products = func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return func(*map(rounded, args) if products else args, **(kwargs or {}))


class Int8Functions(TorchFunctionMode):
    """The same for functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 5 * result.mean(0) if func is torch.tanh else result


@attack("apart")
def mode_of_dispatch_inside() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        with Int8():
            y = self.body(x)
        return self.head(torch.tanh(y))

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@pytest.mark.parametrize("mode", [Int8, Int8Functions])
def test_a_mode_around_a_pass_is_refused(mode: Any) -> None:
    x, y = vectors()
    with mode(), pytest.raises(ValueError, match="mode around private"):
        clipped_sum(layers(), classify, x, y, 1.0)


def test_hooks_put_in_force_by_a_private_function_are_refused() -> None:
    x, y = vectors()
    push, pop = (
        getattr(torch._C._autograd, f"_{word}_saved_tensors_default_hooks")
        for word in ("push", "pop")
    )

    def inside(y: Tensor) -> Tensor:
        push(mixed, lambda kept: kept)
        try:
            return y * y
        finally:
            pop()

    with pytest.raises(ValueError, match="hooks on saved"):
        clipped_sum(*between(inside), x, y, 1.0)
    push(mixed, lambda kept: kept)
    try:
        with pytest.raises(ValueError, match="hooks on saved"):
            clipped_sum(layers(), classify, x, y, 1.0)
    finally:
        pop()


def test_a_kernel_in_the_place_of_one_of_torchs_is_refused() -> None:
    x, y = vectors()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("tanh", lambda x: mixed(x.sin()), "CPU")
        with pytest.raises(ValueError, match="another kernel"):
            clipped_sum(layers(), classify, x, y, 1.0)


@attack("either")
def hook_where_functions_are_not_seen() -> Any:
    def hidden(y: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            if y.requires_grad:
                y.register_hook(mixed)
        return y

    return between(hidden)


@attack("apart")
def layer_where_functions_are_not_seen() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            y = self.body(x)
        return self.head(torch.tanh(y))

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@attack("apart")
def rows_of_a_table_where_functions_are_not_seen() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        row = self.body(torch.zeros(1, dtype=torch.long))
        with torch._C.DisableTorchFunction():
            y = x * row
        return self.head(torch.tanh(y))

    return Run(forward, head=head(), body=nn.Embedding(3, D)), classify


@torch.jit.script
def branching(x: Tensor, weight: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x @ weight
    return x @ weight * 2


@torch.jit.script
def scripted_mix(x: Tensor) -> Tensor:
    return x + 5 * x.mean(0, keepdim=True)


@attack("apart")
def scripted_function_with_a_branch() -> Any:
    model = Run(lambda self, x: branching(x, self.weight), weight=randn(D, 3))
    return model, classify


@attack("apart")
def scripted_function_that_mixes() -> Any:
    return between(scripted_mix)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(D, D), nn.Tanh(), head())


@attack("either")
def scripted_module() -> Any:
    return torch.jit.script(layers()), classify


@attack("either")
def traced_module() -> Any:
    return torch.jit.trace(layers(), randn(2, D)), classify


@attack("apart")
def traced_graph() -> Any:
    return torch.fx.symbolic_trace(layers()), classify


@attack("apart")
def compiled_module() -> Any:
    return torch.compile(layers(), backend="eager"), classify


@attack("apart")
def vmap_inside() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        return self.head(torch.vmap(lambda row: torch.tanh(row @ self.weight))(x))

    return Run(forward, head=head(), weight=randn(D, D)), classify


@attack("apart")
def derivatives_by_transform_inside() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        slope = torch.func.grad(lambda rows: torch.tanh(self.body(rows)).sum())(x)
        return self.head(x * slope)

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@attack("apart")
def derivatives_by_autograd_inside() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            values = torch.tanh(self.body(at)).sum()
            (slope,) = torch.autograd.grad(values, at, create_graph=True)
        return self.head(x + slope)

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", attack.parameters())
def test_backward(attack: Attack) -> None:
    withstand(attack)

"""What is relied on of torch's private functions: fails when torch changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from forethought.gradients import boundary


def test_a_lane_is_one_example_and_its_physical_tensor_is_all() -> None:
    x = torch.randn(4, 3, 5)
    with boundary.entered(5) as level:
        lane = boundary.lane(x, 2, level)
        assert boundary.is_lane(lane) and not boundary.is_lane(x)
        assert lane.shape == (4, 3) and boundary.current_level() == level
        whole, dim = boundary.physical(lane)
        assert whole is not lane and dim == 2 and whole.data_ptr() == x.data_ptr()
        assert boundary.rows(lane).shape == (5, 4, 3)
        doubled = lane * 2
        with boundary.outside():
            assert boundary.current_level() != level
            assert torch.equal(boundary.rows(doubled), 2 * x.movedim(2, 0))
        assert boundary.current_level() == level
    assert boundary.current_level() == -1


def test_the_level_ends_when_the_pass_raises() -> None:
    with pytest.raises(KeyError), boundary.entered(3):
        raise KeyError
    assert boundary.current_level() == -1


def test_random_numbers_differ_between_lanes() -> None:
    with boundary.entered(6):
        drawn = torch.rand(2)
        assert boundary.is_lane(drawn) and len(boundary.rows(drawn).unique()) == 12


def test_a_lane_tensor_carries_gradients_of_its_physical_one() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    with boundary.entered(4) as level:
        y = boundary.rows(boundary.lane(x, 0, level).square().sum())
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, 2 * x)


def test_the_same_level_takes_lane_tensors_of_before() -> None:
    # Checkpoints and Functions of the model's own run again in a new level of the same number.
    x = torch.randn(4, 3)
    with boundary.entered(4) as level:
        lane = boundary.lane(x, 0, level)
    with boundary.entered(4) as again:
        assert again == level
        assert torch.equal(boundary.rows(lane.sum()), x.sum(1))


def test_hooks_on_saved_tensors_are_told_of_and_checkpoints_are_not() -> None:
    seen: list[Any] = []

    def enter(hooks: Any, own: Any) -> None:
        seen.append(hooks)
        own(hooks)

    x = torch.randn(3, requires_grad=True)
    with boundary.saving_hooks_by(enter):
        checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
        assert not seen
        with torch.autograd.graph.save_on_cpu():
            assert boundary.saving_hooks_in_force()
        assert len(seen) == 1
    assert not boundary.saving_hooks_in_force()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_both_kinds_go_by_one_way(reentrant: bool) -> None:
    calls: list[Any] = []

    def make(generator: Any) -> Any:
        def ours(function: Any, *args: Any) -> Any:
            calls.append(function)
            return generator(function, *args)

        return ours

    x = torch.randn(3, requires_grad=True)
    with boundary.checkpoints_by(make):
        checkpoint(torch.exp, x, use_reentrant=reentrant).sum().backward()
    assert calls == [torch.exp]
    torch.testing.assert_close(x.grad, x.detach().exp())


class _Double(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def test_functions_inside_a_level_are_handed_over() -> None:
    calls: list[Any] = []

    def ours(kind: Any, args: Any, own: Any) -> Any:
        calls.append(kind)
        return own(kind, *args)

    x = torch.randn(3)
    with boundary.functions_by(ours):
        _Double.apply(x)
        assert not calls
        with boundary.entered(3) as level:
            _Double.apply(boundary.lane(x, 0, level))
        assert calls == [_Double]
    assert boundary.sets_up_context(_Double)

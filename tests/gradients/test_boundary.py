"""What is relied on of torch's private functions: fails when torch changes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forethought.gradients import SlowGradientsWarning, boundary, clipped_sum, vmap_mode
from forethought.gradients.boundary import ExternalState, of_user
from forethought.gradients.vmap_mode import VmapMode


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


TRANSFORMING = """
import torch
from forethought.gradients import clipped_sum

class Model(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.func.grad(torch.sum)(x))

clipped_sum(Model(3, 2), lambda o, t: o.sum(1), torch.ones(4, 3), torch.zeros(4), 1.0)
torch.func.grad(torch.sum)(torch.ones(3))
"""


@pytest.mark.skipif(torch.__version__ >= (2, 9), reason="only torch 2.8 imports its compiler there")
def test_a_pass_does_not_break_the_compiler_that_torch_imports_inside_it() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", TRANSFORMING], check=True)


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


def nothing(x: Any) -> Any:
    return x


def refuse(*_: Any) -> Any:
    raise AssertionError("nobody is asked")


def test_torch_is_as_it_was_tried() -> None:
    boundary.check.cache_clear()
    boundary.check()


@pytest.mark.parametrize("what", list(boundary._RELIED_ON))
def test_a_torch_that_was_not_tried_is_refused_by_name(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(boundary._RELIED_ON, what, lambda: False)
    boundary.check.cache_clear()
    with pytest.raises(RuntimeError, match=f"tried with torch.*{what}"):
        clipped_sum(nn.Conv1d(2, 2, 1), square, torch.randn(3, 2, 4), torch.zeros(3), 1.0)
    monkeypatch.undo()
    boundary.check()


def test_what_was_tried_is_what_may_be_installed() -> None:
    """The versions that messages name are those of pyproject.toml."""
    page = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    allowed = next(
        one for one in tomllib.loads(page)["project"]["dependencies"] if one.startswith("torch")
    )
    oldest, newest = boundary.TRIED
    major, minor = newest.split(".")
    assert allowed == f"torch>={oldest},<{major}.{int(minor) + 1}"


@pytest.mark.parametrize(
    ("fault", "said"),
    [(lambda lanes: lanes.no_such_thing, "no_such_thing"), (lambda lanes: 1 / 0, "by zero")],
)
def test_a_fault_of_our_own_is_not_called_the_model_s(
    fault: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(lanes: Any) -> Any:
        return fault(lanes)

    monkeypatch.setattr(VmapMode, "__enter__", faulty)
    monkeypatch.setattr(vmap_mode, "_OURS", Path(__file__).parent)
    with pytest.raises(RuntimeError, match=f"fault of forethought's.*{said}"):
        clipped_sum(nn.Conv1d(2, 2, 1), square, torch.randn(3, 2, 4), torch.zeros(3), 1.0)


def test_an_error_of_the_model_s_is_its_own() -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return self.no_such_layer(x)

    with (
        pytest.warns(SlowGradientsWarning),
        pytest.raises(AttributeError, match="no_such_layer"),
    ):
        clipped_sum(Wrong(2, 2), square, torch.randn(3, 2), torch.zeros(3), 1.0)


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1).sum(1) - targets).square()


def test_hooks_on_saved_tensors_are_refused_in_lanes_and_nowhere_else() -> None:
    hooks = torch.autograd.graph.saved_tensors_hooks
    with boundary.entered(2), boundary.answering(boundary.UserCodeAnswers(refuse, refuse)):
        with pytest.raises(RuntimeError) as refused, hooks(nothing, nothing):
            pass
        assert boundary.refused_hooks(refused.value)
        with boundary.saving_hooks(None), hooks(nothing, nothing):
            assert boundary.hooks_in_force()
    with hooks(nothing, nothing):
        assert boundary.hooks_in_force()
    assert not boundary.hooks_in_force()


def test_hooks_on_nodes_are_seen() -> None:
    hook = getattr(torch.autograd.graph, "node_creation_hook", None)
    if hook is None:
        pytest.skip("this torch has no hooks on nodes")
    with hook(nothing):
        assert boundary.hooks_in_force()
        with pytest.raises(ValueError, match="hooks"):
            clipped_sum(nn.Conv1d(2, 2, 1), square, torch.randn(3, 2, 4), torch.zeros(3), 1.0)

    class Hooked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with hook(nothing):
                return super().forward(x).relu()

    with pytest.raises(ValueError, match="hooks"):
        clipped_sum(Hooked(2, 2), square, torch.randn(3, 2), torch.zeros(3), 1.0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_both_kinds_go_by_one_way(reentrant: bool) -> None:
    asked: list[Any] = []

    def around(function: Any, args: Any, kwargs: Any, own: Any) -> Iterator[None]:
        asked.append((function, len(args), kwargs))
        with boundary.outside(), boundary.saving_hooks(None):
            parts = own(lambda: None)
            next(parts)
        yield
        for _ in parts:
            pass

    x = torch.ones(3, requires_grad=True)
    checkpoint(torch.exp, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    answers = boundary.UserCodeAnswers(refuse, around)
    with boundary.turns, boundary.entered(3) as level, boundary.answering(answers):
        checkpoint(torch.exp, boundary.lane(x, 0, level), use_reentrant=reentrant)
    assert asked == [(torch.exp, 1, {})]


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
    with boundary.answering(boundary.UserCodeAnswers(ours, refuse)):
        _Double.apply(x)
        assert not calls
        with boundary.entered(3) as level:
            _Double.apply(boundary.lane(x, 0, level))
        assert calls == [_Double]
    assert boundary.sets_up_context(_Double)


def test_a_compiled_function_of_ones_own_is_still_seen_whole() -> None:
    """The compiler knows ``apply`` by name: it must not stop at what stands for it."""
    run = torch.compile(lambda x: _Double.apply(x) + 1, backend="eager", fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    run(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


class _Described:
    """A class that answers something else than its module's name under ``__module__``."""

    __module__ = property(lambda self: "of an object")  # type: ignore[assignment]

    def __init__(self) -> None:
        self.kept: list[float] = []


def test_a_class_without_a_module_name_is_the_user_s_own() -> None:
    held = _Described()
    surroundings = ExternalState([], held, _Described)
    held.kept.append(1.0)
    surroundings.restore()
    assert held.kept == []
    assert of_user(_Described.__module__) and not of_user("torch.nn") and of_user(None)


def test_a_model_that_holds_such_an_object_is_trained() -> None:
    held = _Described()

    class Asks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            held.kept = [float(x.sum())]
            return super().forward(x)

    model, x = Asks(3, 1), torch.randn(8, 3)
    clipped_sum(model, lambda y, t: (y[:, 0] - t).square(), x, torch.zeros(8), 1.0)
    assert held.kept == []

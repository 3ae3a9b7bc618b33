"""Passes in several threads: each protected to its end, and nothing of them left in the process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import left_as_found
from forethought.gradients import boundary, clipped_sum, passes, sums
from forethought.gradients.boundary import UserCodeAnswers, turns
from forethought.rounds.randomness import Seeds
from forethought.training.run import train
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan

LIMIT = 120.0  # seconds, for what takes none


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


seen: list[float] = []
"""A global that the models write to."""


class Everything(nn.Module):
    """A Function, a checkpoint, dropout, a value that reaches Python and is kept in a global."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        assert not seen and not self.calls, "another pass is not over"
        self.calls += 1
        x = checkpoint(torch.tanh, Doubled.apply(self.first(x)), use_reentrant=False)
        seen.append(float(x.abs().max()))
        return self.second(F.dropout(x, 0.2)) * (1 + seen[-1])


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def summed(number: int) -> list[Tensor]:
    """Three passes over a batch of its own; the random numbers are those of the pass."""
    source = torch.Generator().manual_seed(number)
    with turns, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Everything()
    x, y = torch.randn(5, 4, generator=source), torch.randint(3, (5,), generator=source)
    found = []
    for turn in range(3):
        with turns:  # as a round does: seed, then compute
            torch.manual_seed(100 * number + turn)
            sums, norms = clipped_sum(model, loss, x, y, 0.5)
        found += [*sums.values(), norms]
    return found


@contextmanager
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any], count: int) -> list[Any]:
    """``work(0)``, ``work(1)``, … in threads of their own that begin together."""
    together = threading.Barrier(count)

    def one(number: int) -> Any:
        together.wait(LIMIT)
        return work(number)

    with many_switches(), ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Everything goes one", "ignore:Converting a tensor")
def test_eight_threads_compute_what_each_would_alone() -> None:
    replaced = torch.autograd.Function.__dict__["apply"]
    wanted = [summed(number) for number in range(8)]
    found = at_once(summed, 8)
    for ours, theirs in zip(wanted, found, strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert not seen
    assert torch.autograd.Function.__dict__["apply"] is replaced
    with torch.autograd.graph.save_on_cpu():  # a user's own, outside any pass
        x = torch.ones(2, requires_grad=True)
        x.exp().sum().backward()
    assert not boundary.hooks_in_force()


@pytest.mark.slow
def test_runs_in_threads_are_those_that_each_would_be_alone() -> None:
    """As of several clients in one process: sampling, dropout, noise and all."""

    def run(number: int) -> list[Tensor]:
        source = torch.Generator().manual_seed(number)
        x, y = torch.randn(40, 4, generator=source), torch.randint(2, (40,), generator=source)
        model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(6, 2))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        plan = Plan(Mechanism(Rounds(1.0, 6, Poisson(0.3))), 40, 1e-5)
        result = train(model, (x.unsqueeze(1), y), plan, loss=loss, seeds=Seeds(number, number))
        return list(result.model.parameters())

    wanted = [run(number) for number in range(4)]
    for ours, theirs in zip(wanted, at_once(run, 4), strict=True):
        assert all(map(torch.equal, ours, theirs))


def overlapping(
    first: Callable[[], Any], second: Callable[[], Any], between: Callable[[], Any]
) -> None:
    """``first`` begins and ends while ``second`` is in force; then ``between`` is called there."""
    begun, inside, over = threading.Event(), threading.Event(), threading.Event()

    def short() -> None:
        with first():
            begun.set()
            assert inside.wait(LIMIT)
        over.set()

    def long() -> None:
        assert begun.wait(LIMIT)
        with second():
            inside.set()
            assert over.wait(LIMIT)
            between()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(short), pool.submit(long)]:
            done.result(LIMIT)


def refuse(*_: Any) -> Any:
    raise AssertionError("nobody is asked")


def protection_outlives_others(answering: Callable[[UserCodeAnswers], Any]) -> None:
    """What holds in a pass holds until its own end, and nowhere after it."""
    kept = torch.autograd.Function.__dict__["apply"]
    asked: list[Any] = []

    def function(kind: Any, args: Any, own: Any) -> Any:
        asked.append(kind)
        return own(kind, *args)

    def inside() -> None:
        hooks = torch.autograd.graph.saved_tensors_hooks(refuse, refuse)
        with pytest.raises(RuntimeError), hooks:
            pass
        Doubled.generate_vmap_rule = True
        with boundary.entered(2) as level, torch.no_grad():
            answered = boundary.lane(torch.ones(2), 0, level)
            with pytest.raises(RuntimeError, match="setup_context"):  # torch's own answer to vmap
                Doubled.apply(answered)
        assert asked == [Doubled]

    def ours() -> Any:
        return answering(UserCodeAnswers(function, refuse))

    overlapping(ours, ours, inside)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert boundary.hooks_in_force()
    assert torch.autograd.Function.__dict__["apply"] is kept


def test_a_pass_that_ends_takes_no_protection_from_another() -> None:
    protection_outlives_others(boundary.answering)


@contextmanager
def patching(answers: UserCodeAnswers) -> Iterator[None]:
    """The fault: torch's functions are replaced for a pass, and what was found is put back."""
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    kind: Any = torch.autograd.Function
    enter, apply = hooks.__enter__, kind.__dict__["apply"]

    def refused(_: Any) -> None:
        raise RuntimeError(boundary.NO_HOOKS)

    def asks(kind: Any, *args: Any) -> Any:
        return answers.function(kind, args, lambda kind, *args: apply.__get__(None, kind)(*args))

    hooks.__enter__, kind.apply = refused, classmethod(asks)
    try:
        yield
    finally:
        hooks.__enter__, kind.apply = enter, apply


def test_what_patches_torch_for_a_pass_is_caught() -> None:
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    kind: Any = torch.autograd.Function
    enter, apply = hooks.__enter__, kind.__dict__["apply"]
    names = left_as_found.Namespaces()
    names.look()
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            protection_outlives_others(patching)
        assert list(names.changed()) == [
            "torch.autograd.Function.apply is another",
            "torch.autograd.graph.saved_tensors_hooks.__enter__ is another",
        ]
    finally:
        hooks.__enter__, kind.apply = enter, apply


@contextmanager
def told(asked: threading.Event) -> Iterator[None]:
    """``asked`` is set where a thread must wait for its turn."""
    lock = turns._lock

    class Told:
        def acquire(self) -> bool:
            if not lock.acquire(blocking=False):
                asked.set()
                lock.acquire()
            return True

        def release(self) -> None:
            lock.release()

    turns._lock = Told()  # type: ignore[assignment]
    try:
        yield
    finally:
        turns._lock = lock


def one_after_the_other() -> bool:
    """Whether a second pass waits while the first is in the model."""
    first, met = threading.Event(), threading.Event()
    inside: list[int] = []
    most: list[int] = []

    class Slow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            inside.append(1)
            most.append(len(inside))
            if first.is_set():
                met.set()
            else:
                first.set()
                assert met.wait(LIMIT)
            inside.pop()
            return super().forward(x).relu()

    def one() -> None:
        clipped_sum(Slow(2, 3), loss, torch.ones(2, 2), torch.zeros(2, dtype=torch.long), 1.0)

    def another() -> None:
        assert first.wait(LIMIT)
        one()

    with told(met), ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(one), pool.submit(another)]:
            done.result(LIMIT)
    return max(most) == 1


def test_passes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert one_after_the_other()
    monkeypatch.setattr(passes.boundary, "turns", nullcontext())
    assert not one_after_the_other()


def precisions() -> list[str]:
    return [products.fp32_precision for products in sums._PRODUCTS]


def test_a_precision_is_not_given_up_under_another_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sum's end must not bring back lesser products while another computes with exact ones."""
    if not precisions():
        pytest.skip("this torch has one setting for all products")

    def kept() -> bool:
        met, over = threading.Event(), threading.Event()

        def another() -> list[str]:
            with sums.exactly("cpu"):
                met.set()
                assert over.wait(LIMIT)
                return precisions()

        with told(met), ThreadPoolExecutor(1) as pool:
            with sums.exactly("cpu"):
                found = pool.submit(another)
                assert met.wait(LIMIT)
            over.set()
            return set(found.result(LIMIT)) <= {"ieee", "none"}

    before = precisions()
    try:
        sums._PRODUCTS[-1].fp32_precision = "tf32"
        assert kept()
        assert precisions()[-1] == "tf32"
        monkeypatch.setattr(sums, "turns", nullcontext())
        assert not kept()
    finally:
        for products, precision in zip(sums._PRODUCTS, before, strict=True):
            products.fp32_precision = precision


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_in_a_turn_ends_it_and_takes_others() -> None:
    def parted() -> int:
        with turns, turns:
            return os.fork()

    read, write = os.pipe()
    child = 0  # until the parent knows better
    try:
        if not (child := parted()):  # here too both turns have ended
            os.close(read)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(turns(lambda: os.write(write, b"another had its turn"))).result(LIMIT)
    finally:
        if not child:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        assert said.read() == b"another had its turn"
    assert os.waitpid(child, 0)[1] == 0

"""The execution of a run: device, threads, processes; nothing here can change a guarantee."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict, Unpack

import torch
from torch import distributed

from forethought.gradients.sharded import of_lost_process
from forethought.rounds.private_sum import Team, TeamError, present_team
from forethought.rounds.randomness import Seeds
from forethought.values.checks import optional, settle, whole

# The device: one that torch knows and this machine has, or a clear error.


def usable(device: str | torch.device) -> torch.device:
    """The device, checked by allocating a tensor on it.

    Raises:
        ValueError: no such device on this machine; the message lists those that it has.
    """
    here = ["cpu"]
    if torch.cuda.is_available():
        here += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        here.append("mps")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ValueError(
            f"device {str(device)!r} cannot be used here: this machine has {', '.join(here)}"
        ) from error
    return found


# The number of threads of a run: at most as many as this process may use, and as are free.
#
# Torch uses a thread for every core of the machine, even if a container's quota or other processes
# leave fewer; too many threads wait for each other at every operation. The number can change
# rounding, so a continued run keeps the number that it began with, and a seeded run does not depend
# on the load.


_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores(quota: Path = _QUOTA) -> int:
    """The number of cores that this process may use: CPU affinity and control-group quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = count or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        if allowed != "max":
            found = min(found, max(1, int(allowed) // int(period)))
    except (OSError, ValueError):
        pass  # no control group, or an unknown format
    return found


def free_threads(usual: int, *, by_load: bool = True) -> int:
    """The number of threads for a run: torch's number, limited to the free cores.

    Args:
        usual: torch's number of threads.
        by_load: True to leave out cores that were busy in the last minute.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return usual  # the user decided it
    there = cores()
    if by_load and hasattr(os, "getloadavg"):
        there -= round(os.getloadavg()[0])
    return max(1, min(usual, there))


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with ``count`` threads, then set torch's number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Ctrl-C and SIGTERM end a run between two rounds, with a checkpoint.


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was stopped from outside, after a whole round.

    Attributes:
        folder: folder to resume it from; None if it had no run folder.
        rounds: number of rounds that were done.
    """

    def __init__(self, folder: Path | None, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        how = f"resume it with resume=True and out={str(folder)!r}"
        how = "it had no run folder, so it cannot be resumed" if folder is None else how
        super().__init__(f"interrupted after {rounds} rounds; {how}")


class InterruptGuard:
    """While active, the first SIGINT or SIGTERM sets :attr:`requested`; the second acts at once.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not None:  # a handler in C could not be set back
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for known, handler in self._before.items():
            signal.signal(known, handler)


# Data-parallel runs: one plan, several processes, the same result.


@contextlib.contextmanager
def launched() -> Iterator[None]:
    """Join the processes that torchrun started, if it did, and leave them at the end.

    Uses NCCL with one device a process if there are CUDA devices, otherwise gloo.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    if not several or not distributed.is_available() or distributed.is_initialized():
        yield
        return
    cuda = torch.cuda.is_available() and distributed.is_nccl_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
        distributed.barrier()  # no process leaves while another still waits for it
    finally:
        distributed.destroy_process_group()


@contextlib.contextmanager
def all_there(team: Team, folder: Path | None) -> Iterator[None]:
    """Turn the error of a process that is gone into one line that says what to do.

    Raises:
        TeamError: another process ended while this one waited for it.
    """
    try:
        yield
    except RuntimeError as error:
        if team.size == 1 or not of_lost_process(error):
            raise
        how = f"resume the run in {folder}" if folder else "there is no run folder to resume"
        raise TeamError(
            f"another process of this run has ended, so this one ends: {how}"
        ) from error


def leads() -> bool:
    """True if this process shows and writes output for the user."""
    return int(os.environ.get("RANK", "0")) == 0


def alone(name: str) -> None:
    """Refuse several processes in a function that runs several plans, one after the other.

    Raises:
        ValueError: several processes; names the function that they can run.
    """
    if (size := present_team().size) > 1:
        raise ValueError(f"{name} runs in one process, this is one of {size}: start a single one")


def check_model(model: torch.nn.Module) -> None:
    """Refuse a model that another library has wrapped for several processes.

    Raises:
        ValueError: the message names the wrapper and says what to do.
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
            raise ValueError(
                f"{name or 'the model'} is wrapped in {kind}, which would add up gradients before "
                "they are clipped: give the model itself (.module)"
            )


def same_start(model: torch.nn.Module, team: Team) -> None:
    """Copy the first process's weights and buffers to every process."""
    if team.size == 1:
        return
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if not hasattr(tensor, "to_local"):  # every process has its own shards
                distributed.broadcast(tensor.data, src=0)


# Options that cannot change a guarantee: where a run computes and when it saves.


@dataclass(frozen=True)
class Execution:
    """Options of a run's execution. They do not change sampling or any distribution.

    A sum that differs by rounding in its last bits gets another draw of the noise.

    Args:
        device: device to train on; default: the model's.
        micro_batch: examples whose gradients are held at once, which bounds memory. It changes
            contributions in their last bits only; where groups or local updates are clipped and
            the model has batch normalisation, it changes them: a part of a group then has
            statistics of its own.
        checkpoint_every: rounds between checkpoints; default: by time, about every 10 s.
        log_every: rounds between rows of the history; default: about 100 rows.
        salted: deprecated, without effect: the noise of a round always depends on weights and sum.

    Raises:
        TypeError, ValueError: a number that is no whole number of at least 1.
    """

    device: str | torch.device | None = None
    micro_batch: int | None = None
    checkpoint_every: int | None = None
    log_every: int | None = None
    salted: bool | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.salted is not None:
            words = (
                "Execution(salted=) does nothing, since all noise is bound to its sum: leave it out"
            )
            warnings.warn(words, DeprecationWarning, stacklevel=3)
            settle(self, salted=None)  # said once: copies do not say it again
        for name in ("micro_batch", "checkpoint_every", "log_every"):
            optional(whole, name, getattr(self, name))


class ShortForms(TypedDict, total=False):
    """Options of ``execution=Execution(...)`` and ``seeds=Seeds(...)`` as single arguments."""

    device: str | torch.device | None
    micro_batch: int | None
    checkpoint_every: int | None
    log_every: int | None
    seed: int | None
    noise_seed: int | None


def settled(
    execution: Execution | None, seeds: Seeds | None, **short: Unpack[ShortForms]
) -> tuple[Execution, Seeds]:
    """One execution and one seeds value from ``execution=``, ``seeds=`` and their short forms.

    Raises:
        TypeError: an unknown option, or values of another type.
        ValueError: an option that is given twice.
    """
    unknown = sorted(set(short) - set(ShortForms.__annotations__))
    if unknown:
        raise TypeError(
            f"unknown option {', '.join(map(repr, unknown))}; besides those by name there are "
            f"{', '.join(ShortForms.__annotations__)}"
        )
    for name, value, kind in (("execution", execution, Execution), ("seeds", seeds, Seeds)):
        if not isinstance(value, kind | None):
            raise TypeError(f"{name} must be a forethought.{kind.__name__}, not {value!r}")
    given: dict[str, Any] = {name: value for name, value in short.items() if value is not None}
    own = {"seed": "sampling", "noise_seed": "noise"}
    of_seeds = {own[name]: given.pop(name) for name in own if name in given}
    if (execution is not None and given) or (seeds is not None and of_seeds):
        twice = ", ".join({**given, **of_seeds})
        raise ValueError(f"{twice} is said twice: in execution= or seeds=, and by itself")
    return execution or Execution(**given), seeds or Seeds(**of_seeds)

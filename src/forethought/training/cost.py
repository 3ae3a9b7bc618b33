"""The memory and the time of training a plan, from a few rounds on made-up records.

A copy of the model with random weights runs a few rounds of made-up records at two sizes of
micro_batch; of a large model, its repeated layers are cut to one and to two. The peak memory is
that of a step of the weights, or else linear in the size of micro_batch; a round's time is linear
in the number of blocks, and each further layer adds the difference between the copies of one and
two layers. So a model that does not fit in memory here, or that has no weights yet (on torch's
``meta`` device), is measured as well.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forethought.gradients import SlowGradientsWarning, batches, check_model
from forethought.gradients.boundary import memory_of
from forethought.gradients.clipped import COMPARED, shortened, trial_size
from forethought.gradients.sums import flat
from forethought.rounds.contributions import Gradients, Loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import Records, as_records
from forethought.training.records import arranged, form_of, opened, usual_loss
from forethought.training.run import train
from forethought.values.checks import instance, real, whole
from forethought.values.mechanism import Examples, FullBatch, Mechanism, Persons, Rounds
from forethought.values.plan import Plan
from forethought.values.use import trained_parameters

GB = 1e9
# The first size of micro_batch that is tried, and the rounds at each size; the first round does
# more work than the others.
TRIED, ROUNDS = 4, 3
# Records in the longer of two timed rounds; the most whose peak is measured.
TIMED, MOST = 32, 128
# Models of more bytes are tried with one and with two of their repeated layers.
LARGE = 200e6
# The share of a device's memory for tensors; the driver and fragmentation take the rest.
USABLE = 0.9


@dataclass(frozen=True)
class Cost:
    """Memory and time of a run, for one process.

    Args:
        weights: bytes that do not grow with micro_batch: model, optimizer state and others.
        each: bytes for each example of a micro_batch.
        unsplit: bytes of the largest layer, which sharding gathers, two at a time.
        program: bytes of Python and its libraries here; 0 for a GPU's memory.
        micro_batch: examples at once.
        rounds: rounds of the plan.
        batch: mean batch size of the plan.
        begin, example: seconds of a round on this machine, and of each example in it.
        tried: made-up examples that run before the first round, to see that an example's place in a
            block does not change its bits.
        least: bytes, without the program's, that even small blocks take.
        block: examples of micro_batch that are computed at once here; 0: all.
    """

    weights: float
    each: float
    unsplit: float
    program: float
    micro_batch: int
    rounds: int
    batch: float
    begin: float
    example: float
    tried: int = 0
    least: float = 0.0
    block: int = 0

    @property
    def memory(self) -> float:
        """Peak bytes of the process."""
        line = self.weights + self.each * (self.block or self.micro_batch)
        return self.program + max(self.least, line)

    @property
    def step(self) -> float:
        """Seconds of a round with the mean batch, on this machine."""
        return self.begin + self.example * self.batch

    @property
    def seconds(self) -> float:
        """Seconds of the run's rounds on this machine, with no other load."""
        return self.step * self.rounds

    def largest(self, memory: float, shards: int = 1) -> int:
        """The largest micro_batch that fits into ``memory`` bytes a process; 0: none fits.

        Args:
            shards: number of processes that share weights, sums and the optimizer's state.
        """
        room = real("memory", memory) - self.program
        if whole("shards", shards) > 1:
            room = (room - 2 * self.unsplit) * shards
        line = (room - self.weights) / shards / max(self.each, 1.0)
        return max(0, math.floor(line)) if room >= self.least else 0

    def shards(self, memory: float) -> int | None:
        """Processes needed for one example at a time, a power of two; None: no number suffices."""
        return next((2**k for k in range(13) if self.largest(memory, 2**k)), None)

    def text(self, gpu_memory: float | None = None) -> str:
        """The cost in words.

        Args:
            gpu_memory: memory of a GPU on another machine, in GB; None: leave it out.
        """
        held = f", {self.program / GB:.2g} of them Python and its libraries" if self.program else ""
        lines = [
            f"memory: about {self.memory / GB:.2g} GB a process with micro_batch={self.micro_batch}"
            f"{held}; each example more takes {self.each / 1e6:.2g} MB",
            f"time: about {self.step:.2g} s a round here, {self.seconds:.3g} s for all "
            f"{self.rounds:,}; {self.example * self.tried:.3g} s before the first, for a test of "
            f"blocks on {self.tried:,} made-up examples",
        ]
        if gpu_memory is not None:
            gpu_memory = real("gpu_memory", gpu_memory, above=0.0)
            lines.append(f"on a GPU of {gpu_memory:g} GB: {self._fits(gpu_memory * GB * USABLE)}")
        return "\n".join(lines)

    def _fits(self, memory: float) -> str:
        there = replace(self, program=0.0)
        if most := there.largest(memory):
            return f"it fits, with micro_batch up to {most:,}"
        shards = there.shards(memory)
        if shards is None:
            return "one example does not fit, however many GPUs share the weights"
        return (
            f"too small for one; {shards} of them, with sharded weights, take micro_batch up to "
            f"{there.largest(memory, shards):,}"
        )


@torch.random.fork_rng(devices=[])  # leaves the caller's random numbers as they were
def cost(
    model: nn.Module,
    data: object,
    plan: Plan,
    *,
    loss: Loss | None = None,
    micro_batch: int | None = None,
) -> Cost:
    """Measure the memory of a process and the time on this machine that training will take.

    Only the shapes of model and data are used, not their values; nothing is trained or spent.

    Args:
        model: as for :func:`forethought.train`; its weights may be on torch's ``meta`` device.
        data: as for :func:`forethought.train`; one record is enough, as a list.
        plan: the plan that would run.
        loss: as for :func:`forethought.train`.
        micro_batch: examples at once; default: the mean batch.

    Raises:
        ValueError, TypeError: arguments that training would refuse, or a plan that clips groups.
    """
    plan = instance("plan", plan, Plan)
    if plan.contribution.clipping == "group":
        raise ValueError("plans that clip groups have no cost beforehand: time a few rounds")
    check_model(model)
    trained_parameters(model)
    plan = plan.with_(preparation=None)  # its one pass over the data takes no more memory
    held = plan.mean_batch if micro_batch is None else whole("micro_batch", micro_batch)
    own = arranged(opened(data, None)[0], plan, usual_loss(data) if loss is None else loss)
    persons = isinstance(plan.contribution, Persons)
    if persons:  # a person is one record now, clipped the same way
        plan = plan.with_(contribution=Examples())
    records = as_records(own.data, form_of(model)[0])
    trial = _TrialRounds(own.wrapped(model), records, plan, own.loss)
    trial.blocks = 2 if held < plan.mean_batch else 1
    stacks = _stacks(model)
    most = max(1, round(held))
    few = min(TRIED, most)
    counts = _counts(trial, model, few)
    large = len(counts) > 1
    while trial.alone and few < min(most, TIMED):  # small blocks may be computed differently
        few = min(2 * few, most)
        trial.seconds(few, counts[0])
    longer = max(few + 1, min(2 * few if large else max(2 * few, TIMED), most))
    # A round of one block, and one of as many blocks as make the difference clear.
    blocks = (1, 1 + math.ceil(TIMED / min(longer, most)))
    rounds = [[trial.seconds(min(longer, most), count, b) for b in blocks] for count in counts]
    how = Gradients(own.loss, flat, micro_batch)  # type: ignore[arg-type]  # it is not computed
    own_blocks, alone = how.blocks(plan.privacy.round(0)), trial.alone
    # It holds the mean batch, or what may be held.
    block = own_blocks.sizes[len(own_blocks.sizes) // 2]
    # Less than 8 may take the memory of 8, or go another way.
    start = max(
        batches.UNIT // 2 if large or persons else batches.UNIT, few // batches.UNIT * batches.UNIT
    )
    sizes = [*([block] if 1 < block < batches.UNIT else []), 1, start, 2 * start]
    # Kernels have allocated their workspaces by now. The model is counted in the peaks.
    gc.collect()  # memory of earlier trials does not count
    program = _resident() - sum(one.nbytes for one in model.parameters() if not one.is_meta)
    peaks = [[trial.peak(size, count) for size in sizes] for count in counts]
    while not trial.alone and sizes[-1] < MOST and any(_bends(sizes, row) for row in peaks):
        sizes.append(2 * sizes[-1])
        for row, count in zip(peaks, counts, strict=True):
            row.append(trial.peak(sizes[-1], count))
    more = max(map(len, stacks or ()), default=1) - 1
    weights, each = _line(sizes[-2:], [row[-2:] for row in peaks], more)
    least = max(0.0, peaks[0][0] + more * (peaks[-1][0] - peaks[0][0]))
    begin, time_of_block = _line(blocks, rounds, more)
    unit = max((_bytes(part) for stack in stacks or () for part in stack), default=_bytes(model))
    told = weights, each, unit, max(0.0, program), round(held), plan.rounds, plan.mean_batch
    here = shortened(own_blocks.sizes[-1], trial.widest, tuple(model.parameters()))
    if here < own_blocks.sizes[-1]:
        own_blocks, block = own_blocks.within(here), min(block, here)
    tried = 0 if alone else trial_size(own_blocks)
    return Cost(*told, begin, time_of_block / min(longer, most), tried, least, block)


def _counts(trial: _TrialRounds, model: nn.Module, few: int) -> tuple[int | None, ...]:
    """Try the model; return what is tried of its repeated layers: one and two, or None for all.

    Raises:
        ValueError: a large model without weights that does not run with fewer layers.
    """
    if _bytes(model) > LARGE and _stacks(model) is not None:
        try:
            trial.seconds(few, 1)
            return 1, 2
        except Exception as error:  # such as of a forward that takes its layers by their numbers
            if any(one.is_meta for one in model.parameters()):
                raise ValueError(
                    f"the cost is tried with fewer repeated layers, and this model needs all "
                    f"({error}): loop over them in forward, or load its weights first"
                ) from error
    trial.seconds(few)
    return (None,)


def _bends(sizes: list[int], peaks: list[float]) -> bool:
    """True if the last slope is not that of examples: it is much steeper, or next to nothing."""
    before, last = (np.diff(peaks) / np.diff(sizes))[-2:]
    return bool(last > 4 * before or peaks[-1] < 1.01 * peaks[-2])


def _line(sizes: Sequence[int], found: list[list[float]], more: int) -> tuple[float, float]:
    """The line through two points, as value at 0 and slope, neither negative.

    Args:
        found: the values at both sizes; if there are two rows, of one and of two layers.
        more: number of layers after the first; each adds the difference between the rows.
    """
    values = np.array(found[0]) + more * (np.array(found[-1]) - np.array(found[0]))
    slope = max(0.0, float(values[1] - values[0]) / (sizes[1] - sizes[0]))
    return max(0.0, float(values[0]) - slope * sizes[0]), slope


def _resident() -> float:
    """Bytes of memory that this process holds; 0 if the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return float(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0.0


def peak(run: Callable[[], object]) -> float:
    """The peak of bytes of CPU tensors while ``run`` runs, above those before it.

    Torch's allocator reports every allocation to a profiler.
    """
    autograd: Any = torch.autograd  # its stubs do not know the profiler
    how = torch._C._profiler._ExperimentalConfig()
    kind = autograd.ProfilerState.CPU
    autograd._enable_profiler_legacy(
        autograd.ProfilerConfig(kind, False, True, False, False, False, how)
    )
    try:
        run()
    finally:
        threads = autograd._disable_profiler_legacy()
    most = 0.0
    for events in threads:
        sizes = [e.cpu_memory_usage() for e in events if e.kind() == "memory_alloc"]
        most += max(accumulate(sizes), default=0.0)
    return most


class _TrialRounds:
    """A copy of a model that runs rounds of made-up records.

    Args:
        model: the model to train.
        records: only their form is used.
        plan, loss: of training.

    Attributes:
        blocks: number of blocks of a batch whose peak is measured, computed one after the other.
        alone: True if the examples of the last trial were computed one at a time.
        widest: the most numbers of one example that a value has.
    """

    widest = 1

    def __init__(self, model: nn.Module, records: Records, plan: Plan, loss: Loss | None) -> None:
        self._model, self._loss, self._plan, self.blocks, self.alone = model, loss, plan, 1, False
        self._form = records.take(np.zeros(1, dtype=np.int64))

    def peak(self, size: int, count: int | None) -> float:
        """Peak bytes of model, optimizer and per-example gradients with ``size`` at a time."""
        return peak(lambda: self._train(_made(self._model, count), size, self.blocks))

    def seconds(self, size: int, count: int | None = None, blocks: int = 1) -> float:
        """Seconds of a round of some blocks of ``size`` records."""
        stamps: list[float] = []
        model = _made(self._model, count)
        self._train(model, size, blocks, lambda event: stamps.append(time.perf_counter()))
        return float(np.diff(stamps).min())

    def _train(
        self,
        model: nn.Module,
        size: int,
        blocks: int,
        progress: Callable[[Any], None] | None = None,
    ) -> None:
        count = blocks * size
        data = torch.utils._pytree.tree_map(lambda leaf: _like(leaf, count), self._form)
        mechanism = Mechanism(Rounds(1.0, ROUNDS, FullBatch()), adjacency="add-or-remove")
        plan = self._plan.with_(mechanism=mechanism, examples=count, budget=None)
        how: dict[str, Any] = {"progress": progress, "log_every": ROUNDS, "micro_batch": size}
        with warnings.catch_warnings(record=True) as told, torch.random.fork_rng(devices=[]):
            warnings.simplefilter("always")
            here = copy_context()
            here.run(COMPARED.set, 0)  # copies need no comparison: nothing of them is released
            how |= {"loss": self._loss, "seeds": Seeds(0, 0), "diagnostics": not progress}
            here.run(train, model, data, plan, **how)
        self.alone = any(issubclass(one.category, SlowGradientsWarning) for one in told)
        self.widest = max(self.widest, memory_of(model).widest)


def _like(leaf: Any, size: int) -> Any:
    """``size`` made-up rows of a record's tensor: numbers in [0, 1), or ones for integers."""
    if not isinstance(leaf, Tensor):
        return leaf
    shape = (size, *leaf.shape[1:])
    return torch.rand(shape, dtype=leaf.dtype) if leaf.is_floating_point() else leaf.new_ones(shape)


def _made(model: nn.Module, count: int | None) -> nn.Module:
    """A copy with random weights and the first ``count`` layers of each stack; None: all."""
    empty = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad)
        for one in model.parameters()
    }
    try:
        made = copy.deepcopy(model, {**empty, **{id(one): one for one in model.buffers()}})
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"a model that cannot be copied ({error}) has no cost beforehand"
        ) from error
    for stack in _stacks(made) or () if count else ():
        del stack[count:]
    wanted: dict[int, Any] = {}
    for one in made.parameters():
        values = torch.zeros(one.shape, dtype=one.dtype)
        if one.is_floating_point() and one.itemsize > 1:  # others hold quantised weights
            values.normal_(0, 0.02)
        wanted[id(one)] = nn.Parameter(values, one.requires_grad)
    for buffer in made.buffers():
        known = buffer.detach().cpu().clone()
        wanted[id(buffer)] = torch.zeros_like(buffer, device="cpu") if buffer.is_meta else known
    return copy.deepcopy(made, wanted)


def _stacks(model: nn.Module) -> list[nn.ModuleList | nn.Sequential] | None:
    """The longest lists of three or more identical layers; None if there are none."""
    found = [
        part
        for part in model.modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > 2 and _alike(part)
    ]
    longest = max(map(len, found), default=0)
    return [part for part in found if len(part) == longest] or None


def _alike(layers: Iterable[nn.Module]) -> bool:
    kinds = {
        (type(layer), tuple((name, one.shape) for name, one in layer.named_parameters()))
        for layer in layers
    }
    return len(kinds) == 1


def _bytes(model: nn.Module) -> float:
    return float(sum(one.nbytes for one in (*model.parameters(), *model.buffers())))

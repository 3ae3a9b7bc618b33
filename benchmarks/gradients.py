"""Time and peak memory of clipped gradients beside an ordinary step, Opacus and torch.func.

    python benchmarks/gradients.py                       # every model on the CPU
    python benchmarks/gradients.py --model lenet5 --rounds 30 --threads 1
    python benchmarks/gradients.py --device cuda
    python benchmarks/gradients.py --fill                # what blocks of planned sizes cost
    python benchmarks/gradients.py --short               # what blocks that are cut short save
    python benchmarks/gradients.py --smoke               # seconds; what CI runs

A step is forward, loss and gradients, without the optimizer and without noise: the ordinary step
leaves the mean gradient in ``.grad``, the others the sum of clipped per-example gradients. All
modes run in one process, interleaved round by round; the table gives medians and ratios to the
ordinary step. Opacus is optional (``pip install --group benchmark -c constraints.txt``).

Memory is measured in a process of its own for each mode: the most that torch's allocator holds
during a step above what it held before, by the profiler on the CPU (what the C library keeps of
freed memory is not in it), by ``torch.cuda.max_memory_allocated`` on CUDA. Batches that are no
multiple of 16 run in blocks of their own size, as ``micro_batch`` makes them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from networks import ROWS, Recurrent, Row
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map

from forethought import gradients
from forethought.gradients import clipped
from forethought.gradients.batches import Blocks, planned

warnings.filterwarnings("ignore", module="opacus")
warnings.filterwarnings("ignore", message=".*non-full backward hook.*")
warnings.filterwarnings("ignore", message=".*full backward hook.*")
# Processor time is for a machine that others use at the same time; with one thread it is the
# wall time of an idle machine.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Step = Callable[[], Any]
CLIP_NORM = 1.0


OURS = "forethought"
OPACUS = {"hooks": "opacus hooks", "functorch": "opacus functorch", "ew": "opacus ew"}
MODES = ("ordinary", OURS, *OPACUS.values(), "opacus ghost", "torch.func")


def logits_of(outputs: Any) -> Tensor:
    """Of a network's own kind of output."""
    found: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logits
    return found


def losses(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits_of(outputs), targets, reduction="none")


def call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def make_step(mode: str, row: str, batch: int, device: str) -> Step:
    """A step of one mode; raises whatever the library raises when it cannot do the model."""
    torch.manual_seed(0)
    model = ROWS[row].model()
    if mode.startswith("opacus") and row == "lstm":
        from opacus.layers import DPLSTM

        model = Recurrent(DPLSTM, 256)
    model = model.to(device).train()
    x, y = tree_map(lambda value: value.to(device), ROWS[row].data(batch))
    if mode == "ordinary":
        return lambda: ordinary(model, x, y)
    if mode == OURS:
        # torch's own loss where the outputs are plain, as most people have it.
        loss = losses if isinstance(x, dict) else nn.CrossEntropyLoss(reduction="none")
        blocks = Blocks((batch,)) if batch % 16 else None
        return lambda: gradients.clipped_sum(model, loss, x, y, CLIP_NORM, blocks=blocks)
    if mode == "torch.func":
        return lambda: functional(model, x, y)
    if mode == "opacus ghost":
        return opacus_ghost(model, x, y)
    return opacus_step(model, x, y, mode.split()[1])


def ordinary(model: nn.Module, x: Any, y: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    F.cross_entropy(logits_of(call(model, x)), y).backward()


def functional(model: nn.Module, x: Any, y: Tensor) -> dict[str, Tensor]:
    everything = {name: value.detach() for name, value in model.named_parameters()}
    wanted = {name: everything.pop(name) for name in trained(model)}

    def one(values: dict[str, Tensor], xi: Any, yi: Tensor) -> Tensor:
        xi = tree_map(lambda value: value.unsqueeze(0), xi)
        args, kwargs = ((), xi) if isinstance(xi, dict) else ((xi,), {})
        outputs = torch.func.functional_call(model, {**everything, **values}, args, kwargs)
        return F.cross_entropy(logits_of(outputs), yi.unsqueeze(0))

    gradient = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0), randomness="different")
    rows = gradient(wanted, x, y)
    norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows.values()]).norm(dim=0)
    factors = (CLIP_NORM / norms).clamp(max=1)
    return {name: torch.tensordot(factors, row, 1) for name, row in rows.items()}


def opacus_step(model: nn.Module, x: Any, y: Tensor, mode: str) -> Step:
    from opacus.grad_sample import wrap_model
    from opacus.optimizers import DPOptimizer

    extra = {"batch_first": True, "loss_reduction": "mean"} if mode == "ew" else {}
    wrapped = wrap_model(model, grad_sample_mode=mode, **extra)
    optimizer = DPOptimizer(
        torch.optim.SGD(trained(wrapped).values(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(y),
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(logits_of(call(wrapped, x)), y).backward()
        optimizer.clip_and_accumulate()

    return step


def opacus_ghost(model: nn.Module, x: Any, y: Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(trained(wrapped).values(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(y),
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(logits_of(call(wrapped, x)), y).backward()
        optimizer.accumulate()

    return step


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def times(
    steps: dict[str, Step], rounds: int, device: str, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds of each mode, interleaved."""
    taken: dict[str, list[float]] = {mode: [] for mode in steps}
    for _ in range(rounds):
        for mode, step in steps.items():
            synchronise(device)
            start = clock()
            step()
            synchronise(device)
            taken[mode].append(clock() - start)
    return {mode: statistics.median(values) for mode, values in taken.items()}


def peak(mode: str, row: str, batch: int, device: str) -> int:
    """Bytes above the state before a step; meant for a fresh process."""
    step = make_step(mode, row, batch, device)
    step()
    step()
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return int(torch.cuda.max_memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    found = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")
    return max(accumulate(size for _, size in changes))


def peak_elsewhere(mode: str, row: str, batch: int, device: str) -> int | None:
    command = [sys.executable, __file__, "--peak", mode, "--model", row]
    command += ["--batch", str(batch), "--device", device]
    command += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def measure(
    row: str,
    batch: int,
    rounds: int,
    device: str,
    memory: bool,
    modes: list[str],
    clock: Callable[[], float],
) -> dict[str, dict[str, Any]]:
    steps: dict[str, Step] = {}
    results: dict[str, dict[str, Any]] = {}
    for mode in modes:
        try:
            step = make_step(mode, row, batch, device)
            step()
            step()
            steps[mode] = step
        except Exception as error:  # another library's limits are a result, not a failure
            if mode in ("ordinary", OURS):
                raise
            results[mode] = {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:90]}
    for mode, seconds in times(steps, rounds, device, clock).items():
        results[mode] = {"seconds": seconds}
        if memory:
            results[mode]["peak"] = peak_elsewhere(mode, row, batch, device)
    return results


def table(row: str, batch: int, results: dict[str, dict[str, Any]]) -> str:
    base = results["ordinary"]
    goals = f"goals: time {ROWS[row].time or '–'}, memory {ROWS[row].memory or '–'}"
    lines = [f"\n{row}, batch {batch} ({goals})"]
    lines.append(f"{'mode':<18}{'ms':>9}{'× time':>8}{'MB':>9}{'× memory':>10}")
    for mode, found in results.items():
        if "refused" in found:
            lines.append(f"{mode:<18}{found['refused']:>9}")
            continue
        line = f"{mode:<18}{found['seconds'] * 1e3:>9.1f}"
        line += f"{found['seconds'] / base['seconds']:>8.2f}"
        if found.get("peak") and base.get("peak"):
            line += f"{found['peak'] / 1e6:>9.0f}{found['peak'] / base['peak']:>10.2f}"
        lines.append(line)
    return "\n".join(lines)


def beside(everything: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """The tables of docs/gradients.md: ratios to the ordinary step, of time and of memory."""
    measured = {mode for results in everything.values() for mode in results}
    others = [mode for mode in MODES if mode in measured - {"ordinary", OURS}]
    short = [mode.removeprefix("opacus ") for mode in others]
    for what, key, unit, scale in (("time", "seconds", "ms", 1e3), ("memory", "peak", "MB", 1e-6)):
        yield f"| {what} | ordinary {unit} | forethought | goal | {' | '.join(short)} |"
        yield "| --- " * (4 + len(others)) + "|"
        for row, results in everything.items():
            base = results["ordinary"][key]
            ours, *ratios = (
                f"{results[mode][key] / base:.2f}" if key in results.get(mode, {}) else "fails"
                for mode in (OURS, *others)
            )
            goal = getattr(ROWS[row], what) or "–"
            cells = [f"{row}, {ROWS[row].batch}", f"{base * scale:,.1f}", ours, f"{goal}", *ratios]
            yield f"| {' | '.join(cells)} |"
        yield ""


class AsDrawn(Blocks):
    """A pass of as many rows as were drawn, whatever their bits."""

    def others(self) -> Iterator[Blocks]:
        return iter(())


def fill(repetitions: int) -> None:
    """Poisson batches in blocks of the plan's sizes beside passes of as many rows as were drawn.

    Those bound nothing: they are what the fill is measured against.
    """
    models = {"logistic": Row(lambda: nn.Linear(123, 2), _columns, 64)}
    models |= {row: ROWS[row] for row in ("mlp-64", "lenet5", "cnn")}
    print(f"{'model':<12}{'batch':>6}{'rows':>8}{'time':>8}   of passes without fill, medians")
    for name, row in models.items():
        for expected, goal in ((64, 1.1), (256, 1.05)):
            draws = torch.poisson(torch.full((40,), float(expected))).int().tolist()
            torch.manual_seed(0)
            model, plan = row.model(), planned(expected, expected**0.5)
            batches = [(row.data(drawn), AsDrawn((drawn,))) for drawn in draws]
            ratios = []
            for repetition in range(-1, repetitions):
                for place, ((inputs, targets), bare) in enumerate(batches):
                    spent = {}
                    for blocks in (plan, bare) if (repetition + place) % 2 else (bare, plan):
                        start = time.process_time()
                        gradients.clipped_sum(
                            model, losses, inputs, targets, CLIP_NORM, blocks=blocks
                        )
                        spent[blocks] = time.process_time() - start
                    if repetition >= 0:  # before that, blocks are probed
                        ratios.append(spent[plan] / spent[bare])
            rows = sum(sum(size for *_, size in plan.cut(drawn)) for drawn in draws) / sum(draws)
            ratio = statistics.median(ratios)
            print(
                f"{name:<12}{expected:>6}{rows:>8.3f}{ratio:>8.3f}   goal {goal}",
                flush=True,
            )


SHORT = {"cnn": 512, "lenet5": 2048, "tempered-cnn": 2048, "mlp-64": 4096}
SHORT |= {"resnet18-gn": 96, "vit-tiny": 96, "encoder": 128, "lstm": 512, "bert": 64}


def short(repetitions: int, wanted: list[str] | None) -> None:
    """Poisson batches of the mean size in blocks as long as planned, and cut short."""
    large = clipped.MOST_NUMBERS
    print(f"{'model':<14}{'batch':>6}{'time':>8}{'first':>8}   of blocks as long as planned")
    for name, batch in SHORT.items():
        if wanted and name not in wanted:
            continue
        row, plan = ROWS[name], planned(batch, batch**0.5)
        inputs, targets = row.data(batch)
        spent: dict[int, list[float]] = {1 << 60: [], large: []}
        models = {}
        for most in spent:
            torch.manual_seed(0)
            models[most] = row.model()
        for repetition in range(repetitions + 1):  # in the first, blocks are probed
            for most in sorted(spent, reverse=bool(repetition % 2)):
                clipped.MOST_NUMBERS = most
                start = time.process_time()
                gradients.clipped_sum(models[most], losses, inputs, targets, CLIP_NORM, blocks=plan)
                spent[most].append(time.process_time() - start)
        clipped.MOST_NUMBERS = large
        first, ratio = (
            how(spent[large]) / how(spent[1 << 60])
            for how in (lambda all: all[0], lambda all: statistics.median(all[1:]))
        )
        print(f"{name:<14}{batch:>6}{ratio:>8.2f}{first:>8.2f}", flush=True)


def _columns(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 123), torch.randint(0, 2, (batch,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=ROWS, action="append", help="default: all")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    parser.add_argument("--batch", type=int, help="instead of the table's batch size")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="of torch on the CPU")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--short", action="store_true", help="blocks cut short, on one thread")
    parser.add_argument("--fill", action="store_true", help="blocks' cost, on one thread")
    parser.add_argument("--smoke", action="store_true", help="two small rows, few rounds")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--print", type=Path, help="print the tables of results that were kept")
    parser.add_argument("--peak", choices=MODES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.print:
        print("\n".join(beside(json.loads(chosen.print.read_text(encoding="utf-8")))).rstrip())
        return
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if chosen.short:
        torch.set_num_threads(1)
        short(1 if chosen.smoke else chosen.rounds, chosen.model)
        return
    if chosen.fill:
        torch.set_num_threads(1)
        fill(1 if chosen.smoke else chosen.rounds)
        return
    rows = chosen.model or (["mlp-64", "lenet5"] if chosen.smoke else list(ROWS))
    if chosen.peak:
        batch = chosen.batch or ROWS[rows[0]].batch
        print(peak(chosen.peak, rows[0], batch, chosen.device))
        return
    modes = list(dict.fromkeys(["ordinary", OURS, *(chosen.mode or MODES)]))
    print(
        f"torch {torch.__version__}, {chosen.device}, {torch.get_num_threads()} threads, "
        f"{chosen.clock} time, medians of {3 if chosen.smoke else chosen.rounds} interleaved rounds"
    )
    everything = {}
    for row in rows:
        batch = chosen.batch or (32 if chosen.smoke else ROWS[row].batch)
        try:
            ROWS[row].model()
        except ImportError as error:
            print(f"\n{row}: left out, {str(error).splitlines()[0][:100]}")
            continue
        results = measure(
            row,
            batch,
            3 if chosen.smoke else chosen.rounds,
            chosen.device,
            not (chosen.no_memory or chosen.smoke),
            modes,
            CLOCKS[chosen.clock],
        )
        everything[row] = results
        print(table(row, batch, results), flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Time and peak memory of clipped gradients beside an ordinary step, Opacus and torch.func.

    python benchmarks/gradients.py                       # every model on the CPU
    python benchmarks/gradients.py --model lenet5 --rounds 30
    python benchmarks/gradients.py --device cuda
    python benchmarks/gradients.py --smoke               # seconds; what CI runs

A step is forward, loss and gradients, without the optimizer and without noise: the ordinary step
leaves the mean gradient in ``.grad``, the others the sum of clipped per-example gradients. All
modes run in one process, interleaved round by round; the table gives medians and ratios to the
ordinary step. Opacus is optional (``pip install --group benchmark -c constraints.txt``).

Memory is measured in a process of its own for each mode: on the CPU the high-water mark of the
resident set during five steps (reset through /proc/self/clear_refs) above its value before the
first step, model and batch loaded; on CUDA ``torch.cuda.max_memory_allocated`` likewise.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forethought import gradients

warnings.filterwarnings("ignore", module="opacus")
warnings.filterwarnings("ignore", message=".*non-full backward hook.*")
warnings.filterwarnings("ignore", message=".*full backward hook.*")
# Processor time is for a machine that others use at the same time; with one thread it is the
# wall time of an idle machine.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Step = Callable[[], Any]
CLIP_NORM = 1.0


class Block(nn.Module):
    """Basic block of ResNet-18 with group normalisation."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.GroupNorm(32, outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Encoder(nn.Module):
    """Transformer encoder classifier from linear maps and scaled dot-product attention."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.table(x)
        for layer in self.layers:
            y = layer(y)
        out: Tensor = self.head(y.mean(1))
        return out


class EncoderLayer(nn.Module):
    """Pre-norm layer; separate maps, since Opacus has no rule for torch's packed attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        parts = (
            layer(y).view(*y.shape[:2], self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Recurrent(nn.Module):
    """LSTM classifier; ``layer`` is torch's LSTM or, for Opacus, its own replacement."""

    def __init__(self, layer: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 64)
        self.lstm = layer(64, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.table(x))[0][:, -1])
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


def lenet5() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def cnn() -> nn.Module:
    """The network tabled in van Dijk et al.'s batch clipping paper (CIFAR-10)."""
    layers: list[nn.Module] = []
    for inner, outer in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def resnet18() -> nn.Module:
    widths = (64, 128, 256, 512)
    blocks: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.GroupNorm(32, 64),
        nn.ReLU(),
    ]
    inner = 64
    for width in widths:
        blocks += [Block(inner, width, 1 if width == 64 else 2), Block(width, width, 1)]
        inner = width
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def images(*shape: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (torch.randn(batch, *shape), torch.randint(0, 10, (batch,)))


def sentences(length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (
        torch.randint(0, 1000, (batch, length)),
        torch.randint(0, 2, (batch,)),
    )


# name → (model, data, batch, goal for time, goal for memory)
Row = tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]], int, float, float]
ROWS: dict[str, Row] = {
    "mlp": (mlp, images(784), 512, 1.15, 1.2),
    "lenet5": (lenet5, images(1, 28, 28), 256, 1.35, 1.5),
    "lenet5-1024": (lenet5, images(1, 28, 28), 1024, 1.35, 1.5),
    "cnn": (cnn, images(3, 32, 32), 256, 1.3, 1.3),
    "resnet18": (resnet18, images(3, 32, 32), 64, 1.4, 1.3),
    "encoder": (lambda: Encoder(4, 256, 4), sentences(128), 32, 1.3, 1.2),
    "lstm": (lambda: Recurrent(nn.LSTM, 256), sentences(64), 64, 2.0, 1.5),
}
OURS = "forethought"
OPACUS = {"hooks": "opacus hooks", "functorch": "opacus functorch", "ew": "opacus ew"}
MODES = ("ordinary", OURS, *OPACUS.values(), "opacus ghost", "torch.func")


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def make_step(mode: str, row: str, batch: int, device: str) -> Step:
    """A step of one mode; raises whatever the library raises when it cannot do the model."""
    make, data, _, _, _ = ROWS[row]
    torch.manual_seed(0)
    model = make()
    if mode.startswith("opacus") and row == "lstm":
        from opacus.layers import DPLSTM

        model = Recurrent(DPLSTM, 256)
    model = model.to(device).train()
    x, y = (value.to(device) for value in data(batch))
    if mode == "ordinary":
        return lambda: ordinary(model, x, y)
    if mode == OURS:
        return lambda: gradients.clipped_sum(model, losses, x, y, CLIP_NORM)
    if mode == "torch.func":
        return lambda: functional(model, x, y)
    if mode == "opacus ghost":
        return opacus_ghost(model, x, y)
    return opacus_step(model, x, y, mode.split()[1])


def ordinary(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(x), y).backward()


def functional(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def one(values: dict[str, Tensor], xi: Tensor, yi: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, values, (xi.unsqueeze(0),))
        return F.cross_entropy(outputs, yi.unsqueeze(0))

    rows = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(parameters, x, y)
    norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows.values()]).norm(dim=0)
    factors = (CLIP_NORM / norms).clamp(max=1)
    return {name: torch.tensordot(factors, row, 1) for name, row in rows.items()}


def opacus_step(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> Step:
    from opacus.grad_sample import wrap_model
    from opacus.optimizers import DPOptimizer

    extra = {"batch_first": True, "loss_reduction": "mean"} if mode == "ew" else {}
    wrapped = wrap_model(model, grad_sample_mode=mode, **extra)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.clip_and_accumulate()

    return step


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(wrapped(x), y).backward()
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


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(found.group(1)) * 1024 if found else 0


def peak(mode: str, row: str, batch: int, device: str) -> int:
    """Bytes above the state before the first step; meant for a fresh process."""
    step = make_step(mode, row, batch, device)
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(5):
            step()
        return int(torch.cuda.max_memory_allocated() - before)
    # Code and thread pools load on first use, whatever the model: a tiny one takes that first.
    make_step(mode, row, 4, device)()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    for _ in range(5):
        step()
    return _status("VmHWM") - before


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
    _, _, _, time_goal, memory_goal = ROWS[row]
    lines = [f"\n{row}, batch {batch} (goals: time {time_goal}, memory {memory_goal})"]
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
    parser.add_argument("--smoke", action="store_true", help="two small rows, few rounds")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--peak", choices=MODES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    rows = chosen.model or (["mlp", "lenet5"] if chosen.smoke else list(ROWS))
    if chosen.peak:
        batch = chosen.batch or ROWS[rows[0]][2]
        print(peak(chosen.peak, rows[0], batch, chosen.device))
        return
    modes = list(dict.fromkeys(["ordinary", OURS, *(chosen.mode or MODES)]))
    print(
        f"torch {torch.__version__}, {chosen.device}, {torch.get_num_threads()} threads, "
        f"{chosen.clock} time, medians of {3 if chosen.smoke else chosen.rounds} interleaved rounds"
    )
    everything = {}
    for row in rows:
        batch = chosen.batch or (32 if chosen.smoke else ROWS[row][2])
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

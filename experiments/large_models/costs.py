"""What ``forethought.cost`` says of memory and time, beside what a run takes.

Each figure is of a process of its own, on one thread. Memory is the high-water mark of the resident
set (VmHWM): of the whole process, and above what Python and the libraries take, with a C library
that gives large pieces back when they are freed (MALLOC_MMAP_THRESHOLD_). A round's time is
in seconds of the processor. Rows that are there are skipped.

    python experiments/large_models/costs.py --full
    python experiments/large_models/costs.py --print
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE / "costs.jsonl"
# Two sizes of micro_batch for each of the networks of benchmarks/networks.py.
SIZES = {
    "mlp-512": (64, 256),
    "cnn": (32, 128),
    "resnet18-gn": (8, 24),
    "encoder": (8, 24),
    "lstm": (16, 64),
    "vit-tiny": (8, 24),
    "bert": (4, 12),
    "bert-lora": (4, 12),
    "gpt2": (2, 4),
    "gpt2-lora": (4, 12),
}
_ONE = """
import sys, time, warnings
time.perf_counter = time.process_time
warnings.simplefilter("ignore")
import torch
import forethought as ft
from networks import ROWS, gpt2, masked
from torch.nn import functional as F
from forethought.training import run, cost
what, name, size = sys.argv[1:3] + [int(sys.argv[3])]
torch.set_num_threads(1)
if name == "gpt2-lora":
    from peft import LoraConfig, get_peft_model
    lora = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    build, data = lambda: get_peft_model(gpt2(), lora), masked(64)
else:
    build, data = ROWS[name].model, ROWS[name].data
def held(word):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(word))
def loss(outputs, targets):
    scores = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return F.cross_entropy(scores, targets, reduction="none")
def planned(size):
    return ft.plan(examples=4 * size, batch=2 * size, rounds=4, noise_multiplier=1.0, delta=1e-5,
                   optimizer="adam", learning_rate=1e-3)
if what == "said":
    found = ft.cost(build(), data(size), planned(size), loss=loss, micro_batch=size)
    print(found.memory, found.memory - found.program, found.step or 0)
else:
    some = torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)
    ft.train(torch.nn.Linear(2, 2), some, planned(2), micro_batch=2)  # loads what a run loads
    begun, model, records, plan = held("VmRSS"), build(), data(4 * size), planned(size)
    stamps = []
    ft.train(model, records, plan, loss=loss, micro_batch=size, diagnostics=False,
             progress=lambda event: stamps.append(time.process_time()))
    most = held("VmHWM")
    print(most, most - begun, (stamps[-1] - stamps[0]) / 3)
"""


def figures(what: str, name: str, size: int) -> list[float]:
    """Bytes of a process, those above its libraries, and seconds of a round."""
    command = [sys.executable, "-c", _ONE, what, name, str(size)]
    paths = [str(HERE.parents[1] / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    own = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    environment = {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-600:])
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def shown(rows: list[dict[str, Any]]) -> str:
    """A table, and the shares within 15 %."""
    lines = [
        "| model | micro_batch | GB: said, took | above the libraries | s a round: said, took |",
        "| --- | --- | --- | --- | --- |",
    ]
    near = [0, 0]
    for row in rows:
        (a, b, c), (x, y, z) = row["said"], row["took"]
        near[0] += abs(a / x - 1) <= 0.15
        near[1] += abs(b / y - 1) <= 0.15
        times = f"{c:.2f}, {z:.2f}" if c else f"–, {z:.2f}"
        lines.append(
            f"| {row['model']} | {row['micro_batch']} | {a / 1e9:.2f}, {x / 1e9:.2f} | "
            f"{b / 1e9:.2f}, {y / 1e9:.2f} | {times} |"
        )
    lines.append(f"\nWithin 15 %: {near[0]} of {len(rows)}; above the libraries {near[1]}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="every network, kept")
    parser.add_argument("--print", action="store_true", help="the table, and no run")
    parser.add_argument("--only", choices=SIZES, nargs="+", help="some networks")
    asked = parser.parse_args()
    lines = KEPT.read_text("utf-8").splitlines() if KEPT.exists() else []
    kept = [json.loads(line) for line in lines]
    if asked.print:
        print(shown(kept))
        return
    names = asked.only or (list(SIZES) if asked.full else ["mlp-512"])
    have = {(row["model"], row["micro_batch"]) for row in kept} if asked.full else set()
    for name in names:
        for size in SIZES[name]:
            if (name, size) in have:
                continue
            row = {"model": name, "micro_batch": size, "said": figures("said", name, size)}
            row["took"] = figures("took", name, size)
            print(json.dumps(row), flush=True)
            if asked.full:
                with KEPT.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

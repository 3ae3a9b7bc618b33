"""Memory and time of private training on shards: two gloo processes fine-tune a GPT-2.

    python benchmarks/sharded.py [--smoke]
    python benchmarks/sharded.py --width 768 --layers 12 --steps 4 [--length 128] [--parts 4]

Three ways, two processes each: with and without privacy on shards (``fully_shard``), and with
privacy and a whole copy each. Time is processor time of both processes a step, median; memory is a
process's high-water mark during the steps above what it held before the model was made, the larger
of both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from networks import _transformers
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import forethought as ft
from forethought.gradients import clipped
from forethought.training.optimizers import Descent
from forethought.values.mechanism import Mechanism, Rounds, WithoutReplacement
from forethought.values.plan import Plan
from forethought.values.use import Optimizer

WAYS = ("sharded, private", "sharded, ordinary", "whole, private")
VOCABULARY = 4096
EACH = 16  # records of a micro-batch in each process


def resident(what: str) -> int:
    """Bytes that this process holds (VmRSS), or the most that it held (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def forget_the_most() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def made(width: int, layers: int, length: int, sharded: bool) -> nn.Module:
    """A GPT-2 with random weights, no module of which is ever whole where it is sharded."""
    library = _transformers()
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": VOCABULARY}
    drops = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    config = library.GPT2Config(
        **tokens, **drops, n_positions=length, n_embd=width, n_layer=layers, use_cache=False
    )
    with torch.device("meta"):
        model: nn.Module = library.GPT2LMHeadModel(config)
    if sharded:
        for block in model.transformer.h:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    model.to_empty(device="cpu")
    if not sharded:
        model.tie_weights()  # type: ignore[operator]  # shards are tied still
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            parameter.fill_(value) if parameter.dim() == 1 else parameter.normal_(0, 0.02)
    return model


def loss(outputs: Any, tokens: Tensor) -> Tensor:
    """Of the next token, the mean of each record."""
    ahead = F.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    return ahead.view(len(tokens), -1).mean(1)


class Watch:
    """Processor time of each step after the second, and memory from there on."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._steps, self._last = 0, 0.0

    def __call__(self) -> None:
        now = time.process_time()
        self._steps += 1
        if self._steps == 2:
            forget_the_most()
        if self._steps > 2:
            self.times.append(now - self._last)
        self._last = time.process_time()


# Fewer trials of blocks than in earnest: they come before the first step, which is not timed.
clipped.COMPARED.set(EACH)


def private(
    model: nn.Module, tokens: Tensor, steps: int, parts: int, watch: Callable[[], None]
) -> None:
    batch = parts * EACH * distributed.get_world_size()
    rounds = Rounds(1.0, steps, WithoutReplacement(batch, len(tokens)))
    plan = Plan(
        Mechanism(rounds, adjacency="replace-one"),
        len(tokens),
        1e-5,
        optimizer=Optimizer("adam", 1e-4, ()),
    )
    data = [({"input_ids": row}, row) for row in tokens]
    step = Descent.step

    def watched(self: Descent, *args: Any, **options: Any) -> None:
        step(self, *args, **options)
        watch()

    Descent.step = watched  # type: ignore[method-assign]  # progress= is the first process's
    try:
        ft.train(
            *(model, data, plan),
            loss=loss,
            micro_batch=EACH,
            diagnostics=False,
            log_every=steps,
        )
    finally:
        Descent.step = step  # type: ignore[method-assign]


def ordinary(model: nn.Module, tokens: Tensor, steps: int, parts: int, watch: Watch) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for at in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            mine = torch.arange(EACH) + at + part
            (loss(model(input_ids=tokens[mine]), tokens[mine]).mean() / parts).backward()
        optimizer.step()
        watch()


def one(way: str, size: tuple[int, int, int], steps: int, parts: int, out: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    width, layers, length = size
    tokens = torch.randint(VOCABULARY, (4 * parts * EACH, length), generator=generator)
    torch.manual_seed(0)
    # Everything that any way loads is loaded by now.
    private(made(24, 1, length, True), tokens, 2, 1, lambda: None)
    before, watch, sharded = resident("VmRSS"), Watch(), way.startswith("sharded")
    model = made(width, layers, length, sharded)
    count = sum(p.numel() for p in model.parameters())
    if way.endswith("private"):
        private(model, tokens, steps, parts, watch)
    else:
        ordinary(model, tokens, steps, parts, watch)
    own = statistics.median(watch.times), resident("VmHWM") - before
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, own)
    if distributed.get_rank() == 0:
        times, memory = zip(*every, strict=True)
        out.write_text(json.dumps([sum(times), max(memory), count]))
    distributed.barrier()
    distributed.destroy_process_group()


def measured(way: str, words: list[str]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", __file__, "--way", way, "--out", str(out)]
        subprocess.run([*command, *words], check=True)
        found: list[float] = json.loads(out.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--length", type=int, default=32, help="tokens of a record")
    parser.add_argument("--parts", type=int, default=1, help="micro-batches of a step")
    options = parser.parse_args()
    size, steps = (options.width, options.layers, options.length), options.steps
    if options.smoke:
        size, steps = (48, 2, 8), 4
    if options.way:
        one(options.way, size, steps, options.parts, options.out)
        # Torch's caches of shards hold the group beyond its end: gloo's threads, still there while
        # the interpreter shuts down, now and then abort a process that has done its work.
        sys.stderr.flush()
        os._exit(0)
    print("way | processor seconds a step | MB a process")
    rows = []
    for way in WAYS:
        spent, memory, count = measured(way, sys.argv[1:])
        print(f"{way} | {spent:.2f} | {memory / 1e6:.0f}", flush=True)
        rows.append((spent, memory))
    records = 2 * options.parts * EACH
    print(f"GPT-2 of {count / 1e6:.1f} million parameters, {records} × {size[2]} tokens a step")
    (time_private, small), (time_ordinary, least), (_, large) = rows
    print(f"time: {time_private / time_ordinary:.2f} of sharded without privacy (goal 1.30)")
    print(f"memory: {small / large:.2f} of whole copies, private (goal 0.60)")
    print(f"memory: {small / least:.2f} of sharded without privacy")


if __name__ == "__main__":
    main()

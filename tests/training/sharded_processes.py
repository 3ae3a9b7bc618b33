"""One process of a run on shards; started twice by torchrun.

``python sharded_processes.py CASE,… FOLDER`` runs each CASE, and every process writes what it found
to FOLDER/CASE-RANK.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from forethought.gradients import clipped_sum
from forethought.gradients.batches import planned
from forethought.gradients.boundary import shards_of
from forethought.gradients.clipped import COMPARED
from forethought.gradients.sharded import Shards, take_shards, whole_state
from forethought.gradients.sums import CHARGE, Measured
from forethought.rounds.private_sum import NoisedSum
from forethought.training.execution import Interrupted, launched
from forethought.training.metrics import Event
from forethought.training.optimizers import Descent
from forethought.training.own_loop import private
from forethought.training.run import train
from forethought.training.trainers import private_trainer
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging, Optimizer

EXAMPLES, ROUNDS, WORDS, CLASSES = 60, 6, 11, 5


class Part(nn.Module):
    def __init__(self, width: int, again: bool) -> None:
        super().__init__()
        self.again = again
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        if self.again:
            return x + checkpoint(self.inner, x, use_reentrant=False)
        return x + self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))


class Network(nn.Module):
    """Widths that no number of processes divides; one row fewer than there are processes."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 7)
        self.parts = nn.ModuleList(Part(7, again) for _ in range(3))
        self.narrow, self.head = nn.Linear(7, 1), nn.Linear(7, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words)
        for part in self.parts:
            x = part(x)
        x = x.mean(1)
        return self.head(x) * self.narrow(x)


def network(**options: Any) -> Network:
    torch.manual_seed(0)
    return Network(**options)


def cut(model: Any, parts: Any, **policy: Any) -> Any:
    for part in parts:
        fully_shard(part, **policy)
    fully_shard(model, **policy)
    return model


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (EXAMPLES, 6), generator=generator)
    return words, torch.randint(CLASSES, (EXAMPLES,), generator=generator)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), targets, reduction="none")


def next_word(outputs: Any, words: Tensor) -> Tensor:
    ahead = F.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), words[:, 1:].flatten(), reduction="none"
    )
    return ahead.view(len(words), -1).mean(1)


def alone(model: nn.Module, loss: Any, inputs: Any, targets: Tensor, bound: float) -> Any:
    """The clipped sum and the norms by one ordinary backward pass an example."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trained.items()}
    norms = []
    for at in range(len(targets)):
        outputs = model(inputs[at : at + 1])
        value = loss(outputs, targets[at : at + 1]).sum()
        found = torch.autograd.grad(value, [*trained.values()])
        norm = float(sum(part.double().square().sum() for part in found) ** 0.5)
        norms.append(norm)
        for name, part in zip(trained, found, strict=True):
            total[name] += part.double() * min(1.0, bound * (1 - CHARGE) / norm)
    return total, torch.tensor(norms)


def sums(
    rank: int,
    model: Any,
    ordinary: Any,
    loss: Any,
    inputs: Tensor,
    targets: Tensor,
    most: int | None = None,
) -> dict[str, Any]:
    """How far a sharded sum is from that of one example after the other, and the norms."""
    bound, size = 0.3, len(targets)
    wanted, expected = alone(ordinary, loss, inputs, targets, bound)
    shards = take_shards(model)
    assert shards is not None
    mine = torch.arange(rank, size, 2)
    real, even = len(mine), -(-size // 2)
    mine = torch.cat([mine, mine[:1]])[:even]
    blocks = None if most is None else planned(size / 2, 1.0, most)
    found, norms = clipped_sum(
        model,
        loss,
        inputs[mine],
        targets[mine],
        bound,
        counted=real,
        round_size=size,
        blocks=blocks,
    )
    whole = {name: shards.full(name, part) for name, part in found.items()}
    length = sum(float(part.square().sum()) for part in whole.values()) ** 0.5
    largest = max(float(part.abs().max()) for part in wanted.values())
    return {
        "off": max(float((whole[n] - wanted[n]).abs().max()) for n in wanted) / largest,
        "norms off": float(((norms - expected[rank::2]) / norms).abs().max()),
        "length": length / bound,
        "gathered": sum(not hasattr(p, "to_local") for p in model.parameters()),
        "kind": str(norms.dtype),
    }


def transformer(lora: bool) -> Any:
    import importlib

    from networks import _transformers

    library: Any = _transformers()
    torch.manual_seed(0)
    drops = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    config = library.GPT2Config(
        vocab_size=WORDS, n_positions=6, n_embd=8, n_layer=2, n_head=2, use_cache=False,
        bos_token_id=0, eos_token_id=0, **drops,
    )  # fmt: skip
    model = library.GPT2LMHeadModel(config)
    if lora:
        peft: Any = importlib.import_module("peft")
        options: dict[str, Any] = {"fan_in_fan_out": True, "lora_dropout": 0.0}
        adapters = peft.LoraConfig(r=2, target_modules=["c_attn", "c_proj"], **options)
        model = peft.get_peft_model(model, adapters)
        with torch.no_grad():  # at zeros half of the adapters has no gradient
            for parameter in (p for p in model.parameters() if p.requires_grad):
                parameter.normal_(0, 0.2)
    return model


def blocks_of(model: Any) -> Any:
    return [m for m in model.modules() if type(m).__name__ == "GPT2Block"]


def of_network(rank: int, most: int | None = None, again: bool = False) -> dict[str, Any]:
    model = network(again=again)
    words, labels = (part[:9] for part in data())
    sharded = cut(model, model.parts)
    return sums(rank, sharded, network(again=again), cross_entropy, words, labels, most)


def of_transformer(rank: int, lora: bool) -> dict[str, Any]:
    model = transformer(lora)
    words = data()[0][:9]
    return sums(rank, cut(model, blocks_of(model)), transformer(lora), next_word, words, words)


def one_example(rank: int) -> dict[str, Any]:
    """A batch of one, of which the second process has nothing."""
    model = network()
    words, labels = (part[3:4] for part in data())
    shards = take_shards(cut(model, model.parts))
    assert shards is not None
    found, norms = clipped_sum(
        model, cross_entropy, words, labels, 1e-3, counted=1 - rank, round_size=1
    )
    whole = [shards.full(name, part) for name, part in found.items()]
    return {
        "length": sum(float(p.square().sum()) for p in whole) ** 0.5 / 1e-3,
        "norms": len(norms),
    }


class Choosing(Network):
    """The example says which of the parts, alike in shape, comes first."""

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words)
        for part in self.parts if words.sum() > 0 else self.parts[::-1]:
            x = part(x)
        return self.head(x.mean(1))


def apart(rank: int) -> dict[str, Any]:
    """Examples that agree in each process, and not with those of the other."""
    torch.manual_seed(0)
    model = Choosing()
    take_shards(cut(model, model.parts))
    words = torch.full((2, 6), rank)
    try:
        clipped_sum(model, cross_entropy, words, words[:, 0], 1.0)
    except ValueError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def halves(rank: int) -> dict[str, Any]:
    """The fault: each process clips by the norm of what it keeps, as if that were the gradient."""
    with by_halves():
        return {**of_network(rank), **one_example(rank)}


@contextmanager
def by_halves() -> Iterator[None]:
    honest = Measured.__init__

    def local(self: Measured, *given: Any) -> None:
        honest(self, *given)
        self.norms.by_parameter.mul_(0.5**0.5)

    Measured.__init__ = local  # type: ignore[method-assign]
    try:
        yield
    finally:
        Measured.__init__ = honest  # type: ignore[method-assign]


def bfloat16(rank: int) -> dict[str, Any]:
    model = network()
    words, labels = (part[:9] for part in data())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    sharded = cut(model, model.parts, mp_policy=policy)
    ordinary = network().to(torch.bfloat16)
    return sums(rank, sharded, ordinary, cross_entropy, words, labels)


def plan(noise: float, optimizer: str = "adam", rate: float = 0.1, **options: Any) -> Plan:
    rounds = Rounds(noise, ROUNDS, Poisson(rate))
    settings: dict[str, Any] = {"momentum": 0.9} if optimizer == "sgd" else {}
    return Plan(
        Mechanism(rounds, adjacency="zero-out"),
        EXAMPLES,
        1e-5,
        optimizer=Optimizer(optimizer, 0.05, settings),
        **options,
    )


PLANS: dict[str, Plan] = {
    "adam": plan(0.0),
    # About one record a round: a process often has none.
    "few": plan(0.0, "sgd", 1 / EXAMPLES, averaging=Averaging("exponential", 0.9)),
}


def trained(model: Any, chosen: Plan, **options: Any) -> Any:
    words, labels = data()
    held = (words + 4) % WORDS, labels
    settled: dict[str, Any] = {"seed": 1, "noise_seed": 2, "log_every": 2, "test": held}
    return train(model, (words, labels), chosen, **{**settled, **options})


def equal(rank: int, name: str) -> dict[str, Any]:
    """A run on shards beside the same with a whole model in each process."""
    whole = trained(network(), PLANS[name], micro_batch=2)
    model = network()
    sharded = trained(cut(model, model.parts), PLANS[name], micro_batch=2)
    state = whole_state(sharded.model)
    off = max(float((state[n] - v).abs().max()) for n, v in whole.model.state_dict().items())
    rows = [[[r.round, r.clipped, r.clip_norm] for r in run.history] for run in (whole, sharded)]
    losses = [[row.test_loss for row in run.history] for run in (whole, sharded)]
    return {
        "off": off,
        "statement": whole.statement.to_json() == sharded.statement.to_json(),
        "rows": rows,
        "losses off": float(np.abs(np.subtract(*losses)).max()),
    }


def quantile(rank: int) -> dict[str, Any]:
    """The clipping norms of a run that moves them."""
    model = network()
    chosen = plan(1.0, clip=Clip(0.5, "quantile", count_noise=3.0))
    done = trained(cut(model, model.parts), chosen)
    return {"norms": [row.clip_norm for row in done.history]}


def noise(rank: int) -> dict[str, Any]:
    """The noise on this process's shards, in standard deviations."""
    seen: list[list[float]] = []
    honest = Descent.step

    def step(self: Descent, noised: Any, *given: Any) -> None:
        assert isinstance(noised, NoisedSum)
        seen.append((noised.vector / noised.round.noise_std).tolist())
        honest(self, noised, *given)

    Descent.step = step  # type: ignore[method-assign]
    try:
        model = network()
        trained(cut(model, model.parts), plan(1e6))
    finally:
        Descent.step = honest  # type: ignore[method-assign]
    return {"noise": seen}


def small() -> nn.Sequential:
    """Quick to train; the table has fewer rows in one shard than in the other."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten(), nn.Linear(18, CLASSES))


def looped(model: Any, chosen: Plan, own: bool = True, fall: float = 1.0) -> Any:
    """A loop of one's own: a schedule, and a look at public records after every round."""
    sgd = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9) if own else None
    loader, optimizer = private(model, sgd, data(), chosen, seed=1, noise_seed=2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, fall)
    public = (data()[0] + 4) % WORDS
    for _ in range(loader.epochs):
        for words, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(words), labels, reduction="none").backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                model(public)
    return optimizer


def digest(model: nn.Module) -> str:
    bits = b"".join(value.numpy().tobytes() for value in whole_state(model).values())
    return hashlib.sha256(bits).hexdigest()


def loop(rank: int) -> dict[str, Any]:
    """The weights after a loop without noise, whose steps become shorter."""
    model = small()
    if "RANK" in os.environ:
        cut(model, [model[0]])
    looped(model, plan(0.0), fall=0.9).finish()
    return {name: value.tolist() for name, value in whole_state(model).items()}


def bits(rank: int, out: Path) -> dict[str, Any]:
    """The same rounds with noise by forethought.train and by loops."""
    found = []
    for way in ("train", "planned", "own"):
        model = small()
        cut(model, [model[0]])
        chosen = plan(1.0, "sgd", averaging=Averaging("none"))
        if way == "train":
            train(model, data(), chosen, seed=1, noise_seed=2)
        else:
            ended = looped(model, chosen, way == "own").finish(out if way == "own" else None)
            statement = ended.statement
        found.append(digest(model))
    saved = load_file(out / "model.safetensors")
    same = all(torch.equal(value, saved[name]) for name, value in whole_state(model).items())
    return {"digests": found, "saved": same, "statement": statement.to_json()}


def unlike(rank: int) -> dict[str, Any]:
    """What both processes are told where their loops part."""
    found = {}
    for way in ("whole", "loss", "weight", "end"):
        model = small()
        if way != "whole":
            cut(model, [model[0]])
        other = rank == 1 and way
        try:
            sgd = torch.optim.SGD(model.parameters(), 0.05)
            loader, optimizer = private(model, sgd, data(), plan(1.0))
            for turn, (words, labels) in enumerate(loader):
                if other == "end" and turn == 2:
                    break
                how = {"label_smoothing": 0.1 if other == "loss" else 0.0}
                F.cross_entropy(model(words), labels, reduction="none", **how).backward()
                shards = shards_of(model)
                if other == "weight":
                    shards.local["2.bias"].data.add_(1.0)
                optimizer.step()
            optimizer.finish()
        except (RuntimeError, ValueError) as error:
            found[way] = f"{type(error).__name__}: {error}"
    return found


def unseeded(rank: int) -> dict[str, Any]:
    """The releases of a loop whose secrets nobody chose, which moves its clipping norm."""
    model = small()
    chosen = plan(1.0, clip=Clip(0.5, "quantile", count_noise=3.0))
    loader, optimizer = private(cut(model, [model[0]]), None, data(), chosen)
    for words, labels in loader:
        F.cross_entropy(model(words), labels).backward()
        optimizer.step()
    transcript = optimizer.finish().transcript
    assert transcript is not None
    return {"transcript": transcript.to_values()}


def dies(rank: int) -> dict[str, Any]:
    """The second process is killed in a round of a loop."""
    with killed_at(rank, 8):
        return loop(rank)


class Documents(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        words = data()[0][at]
        return {"input_ids": words, "labels": words}


def trainer(rank: int, out: Path) -> dict[str, Any]:
    """The same rounds by transformers' Trainer, which evaluates, and by a loop."""
    model, again = transformer(False), transformer(False)
    import transformers

    chosen = plan(1.0, averaging=Averaging("none"))
    settings: dict[str, Any] = {
        "output_dir": str(out), "use_cpu": True, "report_to": [], "disable_tqdm": True,
        "learning_rate": 0.05, "lr_scheduler_type": "constant", "optim": "adamw_torch",
        "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2,
    }  # fmt: skip
    seeds: dict[str, Any] = {"seed": 1, "noise_seed": 2}
    refused = ""
    cut(model, blocks_of(model))
    for saves in ("steps", "no"):
        arguments = transformers.TrainingArguments(**settings, save_strategy=saves)
        own = transformers.Trainer(
            model=model, args=arguments, train_dataset=Documents(), eval_dataset=Documents()
        )
        try:
            training = private_trainer(own, chosen, **seeds)
        except ValueError as error:
            refused = str(error)
    own.train()
    ended = training.finish(out / "run")
    cut(again, blocks_of(again))
    steps = torch.optim.AdamW(again.parameters(), 0.05, weight_decay=0.0)
    loader, optimizer = private(again, steps, Documents(), chosen, **seeds)
    again.train()
    for _ in range(loader.epochs):
        for batch in loader:
            again(**batch).loss.backward()
            optimizer.step()
    optimizer.finish()
    rows = own.state.log_history
    return {
        "digests": [digest(model), digest(again)],
        "moved": digest(model) != digest(transformer(False)),
        "refused": refused,
        "rounds": len(ended.transcript or ()),
        "evaluated": sum("eval_loss" in row for row in rows),
        "told": sorted({name for row in rows for name in row} & {"loss", "grad_norm"}),
    }


def loop_halves(rank: int) -> dict[str, Any]:
    """The fault: clipping by the norm of a shard, in a loop."""
    with by_halves():
        return loop(rank)


@contextmanager
def killed_at(rank: int, sums: int | None) -> Iterator[None]:
    """The second process is killed when it has part in so many sums of parameters."""
    scattered, calls = Shards.scattered, [0]

    def dying(self: Shards, *given: Any) -> Tensor:
        calls[0] += 1
        if rank and calls[0] == sums:
            os.kill(os.getpid(), signal.SIGKILL)
        return scattered(self, *given)

    if sums is not None:
        # Torchrun ends the others as soon as one is gone; this one is to say its line first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Shards.scattered = dying  # type: ignore[method-assign]
    try:
        yield
    finally:
        Shards.scattered = scattered  # type: ignore[method-assign]


def run(rank: int, out: Path, resume: bool, stop: int | None, kill: int | None) -> dict[str, Any]:
    """A run with a folder, which a signal stops after a round, or which is killed in one."""
    found: dict[str, Any] = {}

    def progress(event: Event) -> None:
        if event.round == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    model = network()
    try:
        with killed_at(rank, kill):
            ended = trained(
                cut(model, model.parts), plan(1.0), out=out, resume=resume, checkpoint_every=2,
                progress=progress,
            )  # fmt: skip
    except Interrupted as error:
        return {"interrupted": error.rounds}
    found["digest"] = digest(ended.model)
    found["statement"] = ended.statement.to_json()
    return found


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "network": of_network,
    "pieces": lambda rank: of_network(rank, most=2),
    "again": lambda rank: of_network(rank, again=True),
    "one": one_example,
    "apart": apart,
    "halves": halves,
    "bfloat16": bfloat16,
    "gpt2": lambda rank: of_transformer(rank, False),
    "lora": lambda rank: of_transformer(rank, True),
    "adam": lambda rank: equal(rank, "adam"),
    "few": lambda rank: equal(rank, "few"),
    "quantile": quantile,
    "noise": noise,
    "loop": loop,
    "loop halves": loop_halves,
    "unlike": unlike,
    "unseeded": unseeded,
    "dies": dies,
}


def main(case: str, folder: Path) -> None:
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    if case.startswith("run"):  # run:NAME[:resume][:stop=N][:kill=N]
        _, name, *words = case.split(":")
        numbers = {key: int(n) for key, _, n in (word.partition("=") for word in words) if n}
        places = numbers.get("stop"), numbers.get("kill")
        found = run(rank, folder / name, "resume" in words, *places)
        case = name
    elif case in ("bits", "trainer"):
        found = {"bits": bits, "trainer": trainer}[case](rank, folder / case)
    else:
        found = CASES[case](rank)
    (folder / f"{case}-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    COMPARED.set(0)  # how blocks are tried is for other tests
    with launched():
        for each in sys.argv[1].split(","):
            main(each, Path(sys.argv[2]))
    # Torch's caches of shards hold the group beyond its end: gloo's threads, still there while the
    # interpreter shuts down, now and then abort a process that has done its work.
    sys.stderr.flush()
    os._exit(0)

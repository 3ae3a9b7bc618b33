"""Small transformers, trained on public text and fine-tuned on private documents.

A GPT-2 and a BERT of two layers of width 64 first learn from public text. The private documents are
cut to 32 tokens, one a record; the vocabulary is of the public text alone. The GPT-2 learns to go
on with them (perplexity of a token on held-out documents), the BERT to tell their kinds apart.
There are two texts. *Docstrings*: public are Python's reference and the documentation of
pandas, private the docstrings of NumPy, SciPy and scikit-learn, told apart by package. *Services*
(``pip install botocore``): what botocore says of the operations, types and fields of a cloud's
services, which are told apart; private are those of every second service, public the others.
Each is fine-tuned in full and with LoRA, at two budgets and without privacy. Every second of 256
canaries, documents of random tokens, is among the private ones by a coin of its own; the library's
own audit says from their losses before and after what ε the run shows.

    python experiments/large_models/run.py                 # a minute, prints and keeps nothing
    python experiments/large_models/run.py --full          # all rows that are not there yet
    python experiments/large_models/run.py --full --opacus # the same with Opacus, where it runs
    python experiments/large_models/run.py --recipes       # step sizes, batches and ranks
    python experiments/large_models/run.py --full --text services --only bert
    python experiments/large_models/run.py --print         # the tables

Seconds are the processor's, on one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import inspect
import io
import json
import math
import pkgutil
import random
import re
import time
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

import forethought as ft
from forethought.auditing.attack import Games, epsilon_of_guesses, guessed

ROWS = Path(__file__).parent / "rows.jsonl"
PACKAGES = ("numpy", "scipy", "sklearn")
WORDS, VOCABULARY, IGNORED, MASK = 32, 1024, -100, 1
CANARIES, CONFIDENCE = 256, 0.05
# Of private runs, in full and with LoRA: passes, batch, optimizer, step size (None: the planner's).
# Those of docstrings by experiments on other rows (--recipes), the optimizers of services by some
# on descriptions of other services, which are not kept.
EPOCHS = 3.0
BATCH = {"docstrings": 256, "services": 512}
OPTIMIZERS: dict[str, dict[str, str | None]] = {
    "docstrings": {"full": "adam", "lora": "adam"},
    "services": {"full": None, "lora": "adam"},
}
RATES: dict[str, dict[str, float | None]] = {
    "docstrings": {"full": 3e-3, "lora": 1e-2},
    "services": {"full": None, "lora": None},
}
RANK = 8
# Without privacy.
ALONE = {"batch": 32, "full": 1e-3, "lora": 3e-3}


def docstrings(package: str) -> list[str]:
    """Docstrings of a package's functions and classes, each once, in the order of their names."""
    found: dict[str, None] = {}
    home = import_module(package)
    walk = pkgutil.walk_packages(home.__path__, f"{package}.", onerror=lambda name: None)
    for name in sorted(module.name for module in walk):
        if "test" in name or "._" in name:
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                module = import_module(name)
        except Exception:  # what needs something that is not installed
            continue
        for item, value in sorted(vars(module).items()):
            own = str(getattr(value, "__module__", "")).startswith(package)
            if own and callable(value) and not item.startswith("_"):
                text = inspect.getdoc(value) or ""
                if len(text) > 150:
                    found[text] = None
    return list(found)


def descriptions(service: Path) -> list[list[str]]:
    """What botocore says of a service's operations, types and fields."""
    newest = max(service.glob("*/service-2.json.gz"))
    said = json.loads(gzip.decompress(newest.read_bytes()))
    types = list(said["shapes"].values())
    fields = [field for one in types for field in one.get("members", {}).values()]
    return [
        [re.sub(r"<[^>]*>", "", one.get("documentation", "")).strip() for one in ones]
        for ones in (said["operations"].values(), types, fields)
    ]


def of_docstrings() -> tuple[list[str], list[list[str]]]:
    """Public texts, and the documents of each class."""
    return [*topics.values(), *docstrings("pandas")], [docstrings(name) for name in PACKAGES]


def of_services() -> tuple[list[str], list[list[str]]]:
    """The same of botocore's services, as many of each; a text that stands twice is left out."""
    home = Path(import_module("botocore").__file__).parent / "data"
    services = sorted({path.parents[1] for path in home.glob("*/*/service-2.json.gz")})
    each = [descriptions(service) for service in services]
    count = Counter(text for service in each for texts in service for text in texts)
    public: list[str] = []
    kinds: list[list[str]] = [[], [], []]
    for number, service in enumerate(each):
        for own, texts in zip(kinds, service, strict=True):
            once = [text for text in texts if len(text) > 50 and count[text] == 1]
            (own if number % 2 else public).extend(once)
    least = min(map(len, kinds))
    return public, [random.Random(0).sample(own, least) for own in kinds]


TEXTS = {"docstrings": of_docstrings, "services": of_services}


class Text:
    """Public pieces and private documents as tokens.

    Args:
        name: one of ``TEXTS``. small: a tenth of both.
    """

    def __init__(self, name: str, small: bool) -> None:
        texts, kinds = TEXTS[name]()
        self.name, self.classes, public = name, len(kinds), "\n".join(texts)
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = ByteLevel()
        trainer = BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["[PAD]", "[MASK]"],
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator([public], trainer)
        ids = torch.tensor(tokenizer.encode(public).ids)
        pieces = ids[: len(ids) // WORDS * WORDS].view(-1, WORDS)
        order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
        self.public = pieces[order[: len(order) // 10] if small else order]
        documents, labels = [], []
        for number, own in enumerate(kinds):
            for text in own:
                documents.append(tokenizer.encode(text).ids[:WORDS])
                labels.append(number)
        tokens = torch.zeros(len(documents), WORDS, dtype=torch.long)
        for row, document in enumerate(documents):
            tokens[row, : len(document)] = torch.tensor(document)
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(1))
        order = order[:400] if small else order
        some = len(order) // 10
        classes = torch.tensor(labels)
        self.held_out = tokens[order[:some]], classes[order[:some]]
        self.private = tokens[order[some:]], classes[order[some:]]


def network(kind: str, classes: int) -> nn.Module:
    """Of two layers of width 64, random weights."""
    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_positions=WORDS, n_embd=64, n_layer=2, n_head=4,
                bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
            )
        )  # fmt: skip
    return BertForMaskedLM(_bert(classes))


def _bert(classes: int) -> BertConfig:
    return BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=WORDS, num_labels=classes,
    )  # fmt: skip


def arguments(kind: str, tokens: Tensor) -> dict[str, Tensor]:
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}


def of_documents(outputs: Any, labels: Tensor) -> Tensor:
    """The mean loss of each document's tokens after its first, masked ones left out."""
    scores = outputs.logits[:, :-1].transpose(1, 2)
    each = F.cross_entropy(scores, labels[:, 1:], reduction="none", ignore_index=IGNORED)
    return each.sum(1) / (labels[:, 1:] != IGNORED).sum(1).clamp(min=1)


def of_classes(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, reduction="none")


def pretrained(kind: str, text: Text, small: bool) -> nn.Module:
    """The network after its public text; of a BERT, with a new head for the classes."""
    model = network(kind, text.classes).train()
    epochs = 1 if small else 2
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    steps = epochs * -(-len(text.public) // 64)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    source = torch.Generator().manual_seed(2)
    for _ in range(epochs):
        for at in torch.randperm(len(text.public), generator=source).split(64):
            tokens = text.public[at]
            optimizer.zero_grad()
            if kind == "gpt2":
                loss = of_documents(model(input_ids=tokens), tokens).mean()
            else:
                hidden = torch.rand(tokens.shape, generator=source) < 0.15
                scores = model(input_ids=tokens.masked_fill(hidden, MASK)).logits
                loss = F.cross_entropy(scores[hidden], tokens[hidden])
            loss.backward()
            optimizer.step()
            rate.step()
    if kind == "bert":
        torch.manual_seed(3)
        classifier = BertForSequenceClassification(_bert(text.classes))
        classifier.bert.load_state_dict(model.bert.state_dict(), strict=False)
        model = classifier
    return model


def adapted(kind: str, model: nn.Module, rank: int) -> nn.Module:
    torch.manual_seed(4)
    gpt2 = kind == "gpt2"
    targets = ["c_attn", "c_fc", "c_proj"] if gpt2 else ["query", "key", "value", "dense"]
    return get_peft_model(
        model,
        LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules=targets, fan_in_fan_out=gpt2,
            modules_to_save=None if gpt2 else ["classifier"],
        ),
    )  # fmt: skip


class Task:
    """One network's private records with their canaries, and its figure on held-out ones."""

    def __init__(self, kind: str, text: Text) -> None:
        self.kind, self.text = kind, text.name
        self.loss = of_documents if kind == "gpt2" else of_classes
        source = torch.Generator().manual_seed(5)
        count = min(CANARIES, len(text.private[0]) // 4)
        tokens = torch.randint(2, VOCABULARY, (count, WORDS), generator=source)
        classes = torch.randint(0, text.classes, (count,), generator=source)
        self.canaries = self.records(tokens, classes)
        self.there = torch.rand(count, generator=source) < 0.5
        own = [
            torch.cat([one, of[self.there]])
            for one, of in zip(text.private, (tokens, classes), strict=True)
        ]
        self.data, self.held_out = self.records(*own), self.records(*text.held_out)

    def records(self, tokens: Tensor, classes: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        targets = classes
        if self.kind == "gpt2":
            targets = tokens.masked_fill(tokens == 0, IGNORED)
        return arguments(self.kind, tokens), targets

    def losses(self, model: nn.Module, records: tuple[dict[str, Tensor], Tensor]) -> Tensor:
        inputs, targets = records
        was = model.training
        model.eval()
        with torch.no_grad():
            found = [
                self.loss(model(**{name: part[at] for name, part in inputs.items()}), targets[at])
                for at in torch.arange(len(targets)).split(128)
            ]
        model.train(was)
        return torch.cat(found)

    def figure(self, model: nn.Module) -> float:
        """Perplexity of a held-out token, or the share of held-out documents told apart."""
        inputs, targets = self.held_out
        if self.kind == "gpt2":
            many = (targets[:, 1:] != IGNORED).sum(1)
            return math.exp(float((self.losses(model, self.held_out) * many).sum() / many.sum()))
        was = model.training
        model.eval()
        with torch.no_grad():
            right = (model(**inputs).logits.argmax(1) == targets).double().mean()
        model.train(was)
        return float(right)


def ordinary(task: Task, model: nn.Module, part: str, epochs: float) -> nn.Module:
    """Fine-tuned without privacy: small batches, as it is usually done."""
    inputs, targets = task.data
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, ALONE[part])
    source = torch.Generator().manual_seed(6)
    model.train()
    for _ in range(round(epochs)):
        for at in torch.randperm(len(targets), generator=source).split(int(ALONE["batch"])):
            optimizer.zero_grad()
            outputs = model(**{name: one[at] for name, one in inputs.items()})
            task.loss(outputs, targets[at]).mean().backward()
            optimizer.step()
    return model


def with_opacus(task: Task, model: nn.Module, plan: ft.Plan) -> nn.Module:
    """The plan's batch, rounds, noise and step size, with Opacus' hooks and flat clipping at 1."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    inputs, targets = task.data
    wrapped = GradSampleModule(model.train())
    adam = torch.optim.Adam(
        [p for p in wrapped.parameters() if p.requires_grad], plan.optimizer.learning_rate
    )
    optimizer = DPOptimizer(
        adam,
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=round(plan.mean_batch),
    )
    source = torch.Generator().manual_seed(7)
    for _ in range(plan.rounds):
        drawn = torch.rand(len(targets), generator=source) < plan.mean_batch / len(targets)
        pieces = torch.nonzero(drawn).squeeze(1).split(32)
        for number, at in enumerate(pieces):
            optimizer.signal_skip_step(number < len(pieces) - 1)
            outputs = wrapped(**{name: one[at] for name, one in inputs.items()})
            task.loss(outputs, targets[at]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def above(one: Any, other: Any) -> float:
    """The share of pairs in which the first is the larger (the area under the curve)."""
    return float((one[:, None] > other[None, :]).mean())


def planned(task: Task, model: nn.Module, part: str, epsilon: float, **more: Any) -> ft.Plan:
    given: dict[str, Any] = {
        "examples": len(task.data[1]), "model": model, "optimizer": OPTIMIZERS[task.text][part],
        "budget": ft.Budget(epsilon, 1e-5), "epochs": EPOCHS, "batch": BATCH[task.text],
        "learning_rate": RATES[task.text][part],
    }  # fmt: skip
    given.update(more)
    return ft.plan(**{name: value for name, value in given.items() if value is not None})


def tried(task: Task, start: nn.Module, cell: dict[str, Any], small: bool) -> dict[str, Any]:
    """One row."""
    kind, part, epsilon = cell["model"], cell["part"], cell["epsilon"]
    model = copy.deepcopy(start)
    if part == "lora":
        model = adapted(kind, model, cell.get("rank", RANK))
    before = task.losses(model, task.canaries)
    own = dict(cell.get("plan", {}))
    if small:
        own |= {"epochs": 1.0, "batch": 64}
    plan = None if epsilon is None else planned(task, model, part, epsilon, **own)
    begin = time.process_time()
    if plan is None:
        model = ordinary(task, model, part, 1 if small else EPOCHS)
    elif cell["by"] == "opacus":
        model = with_opacus(task, model, plan)
    else:
        model = ft.train(model, task.data, plan, loss=task.loss, micro_batch=128).model
    seconds = time.process_time() - begin
    score = (before - task.losses(model, task.canaries)).double().numpy()
    there = task.there.numpy()
    games = Games(score[~there], score[there], independent=False)
    found = guessed(games)
    level = CONFIDENCE / len(found)
    shown = max(epsilon_of_guesses(games.count, *one, 1e-5, level) for one in found)
    return {
        **cell,
        "held_out": round(task.figure(model), 4),
        "shown_epsilon": round(float(shown), 3),
        "canaries_told_apart": round(above(score[there], score[~there]), 4),
        "seconds": round(seconds, 1),
        **({} if plan is None else {"rounds": plan.rounds, "noise": plan.noise_multiplier}),
        **({} if plan is None else {"learning_rate": plan.optimizer.learning_rate}),
    }


def cells(by: str, recipes: bool, text: str) -> list[dict[str, Any]]:
    """The rows that there are to be."""
    base = [
        {"text": text, "model": kind, "part": part, "by": by}
        for kind in KINDS
        for part in ("full", "lora")
    ]
    if recipes:
        return [
            {**one, "epsilon": 8.0, "plan": more, **({} if rank is None else {"rank": rank})}
            for one in base
            for more, rank in TRIALS
            if rank is None or one["part"] == "lora"
        ]
    budgets = (3.0, 8.0) if by == "opacus" else (3.0, 8.0, None)
    return [{**one, "epsilon": epsilon} for one in base for epsilon in budgets]


KINDS = ("gpt2", "bert")
# What is changed in a private run at ε = 8, and the rank of a LoRA.
TRIALS: list[tuple[dict[str, Any], int | None]] = [
    ({"learning_rate": None}, None),
    ({"learning_rate": 1e-3}, None),
    ({"learning_rate": 3e-3}, None),
    ({"learning_rate": 1e-2}, None),
    ({"learning_rate": 3e-2}, None),
    ({"batch": 1024}, None),
    ({}, 2),
    ({}, 32),
]


def table(rows: list[dict[str, Any]], text: str) -> str:
    """The rows of a text's main trial, one a model, part and library."""
    lines = [
        "| model | trained | by | ε | held out | ε that canaries show | told apart | minutes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if "plan" in row or "failed" in row or row["text"] != text:
            continue
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:g}"
        held_out = _held_out(row)
        lines.append(
            f"| {row['model']} | {row['part']} | {row['by']} | {epsilon} | {held_out} | "
            f"{row['shown_epsilon']:.2f} | {row['canaries_told_apart']:.1%} | "
            f"{row['seconds'] / 60:.1f} |"
        )
    return "\n".join(lines)


def _held_out(row: dict[str, Any]) -> str:
    return f"{row['held_out']:.1f}" if row["model"] == "gpt2" else f"{row['held_out']:.1%}"


def recipes(rows: list[dict[str, Any]]) -> str:
    """What other step sizes, batches and ranks reach at ε = 8."""
    tried: dict[str, dict[str, str]] = {}
    names = [f"{kind}, {part}" for kind in KINDS for part in ("full", "lora")]
    for row in rows:
        if "plan" not in row:
            continue
        own, text = row["plan"], _held_out(row)
        if "batch" in own:
            what = f"batches of {own['batch']:,}"
        elif "rank" in row:
            what = f"rank {row['rank']}"
        elif own["learning_rate"] is None:
            what, text = "the planner's η", f"{text} ({row['learning_rate']:.2g})"
        else:
            what = f"η {own['learning_rate']:g}"
        tried.setdefault(what, {})[f"{row['model']}, {row['part']}"] = text
    lines = ["| at ε = 8 | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for what, found in tried.items():
        lines.append(f"| {what} | " + " | ".join(found.get(name, "–") for name in names) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all rows, kept")
    parser.add_argument("--opacus", action="store_true", help="with Opacus instead")
    parser.add_argument("--recipes", action="store_true", help="other step sizes, batches, ranks")
    parser.add_argument("--only", choices=KINDS, help="one of the models")
    parser.add_argument("--text", choices=TEXTS, default="docstrings")
    parser.add_argument("--print", action="store_true", help="the table of the rows, and no run")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept = (
        [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()] if ROWS.exists() else []
    )
    if asked.print:
        print(table(kept, "docstrings"), recipes(kept), table(kept, "services"), sep="\n\n")
        return
    small = not (asked.full or asked.recipes)
    found = cells("opacus" if asked.opacus else "forethought", asked.recipes, asked.text)
    wanted = [one for one in found if asked.only in (None, one["model"])]
    if small:
        kept, wanted = [], [one for one in wanted if one["epsilon"] in (8.0, None)][:8]
    wanted = [one for one in wanted if not any(one.items() <= row.items() for row in kept)]
    if not wanted:
        return
    text = Text(asked.text, small)
    for kind in KINDS:
        mine = [one for one in wanted if one["model"] == kind]
        if not mine:
            continue
        task, start = Task(kind, text), pretrained(kind, text, small)
        print(f"{kind}: {len(task.data[1])} private documents, {task.figure(start):.4g} before")
        for cell in mine:
            try:
                row = tried(task, start, cell, small)
            except Exception as error:
                if cell["by"] != "opacus":
                    raise
                row = {**cell, "failed": f"{type(error).__name__}: {str(error)[:200]}"}
            print(json.dumps(row), flush=True)
            if not small:
                with ROWS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

"""Runs a script of this folder on a few made-up records: `python small.py NAME [arguments]`.

Stands in for what would be downloaded (data sets, tokenizers, pretrained weights, metrics), in the
form that the libraries give it; the script itself is not touched.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

COUNT = 192
WORDS, LENGTH = 50, 12


class Images(torch.utils.data.Dataset):
    """Images of noise with a bright corner for half of the ten classes."""

    shape: tuple[int, ...] = (28, 28)
    classes = tuple("0123456789")

    def __init__(self, root: Any = None, train: bool = True, transform: Any = None, **_: Any) -> None:
        draw = np.random.default_rng(int(train))
        self.targets = draw.integers(0, 10, COUNT)
        self.data = draw.integers(0, 99, (COUNT, *self.shape)).astype(np.uint8)
        self.data[self.targets > 4, :9, :9] += 150
        self.transform = transform

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.data[index]
        return (self.transform(image) if self.transform else image), int(self.targets[index])


class Coloured(Images):
    shape = (32, 32, 3)


def torchvision() -> None:
    """The library itself, with these images; beside a torch for CPUs, without its operators."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", signature)
        importlib.import_module("torchvision")
    data = importlib.import_module("torchvision.datasets")
    data.MNIST = data.FashionMNIST = Images
    data.CIFAR10 = Coloured


class Tokenizer:
    """Numbers for words, by their letters, padded as asked."""

    pad_token_id, model_max_length = 0, LENGTH

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> Tokenizer:
        return cls()

    def __call__(
        self, texts: Any, pairs: Any = None, padding: Any = False, **_: Any
    ) -> dict[str, Any]:
        together = texts if pairs is None else [f"{a} {b}" for a, b in zip(texts, pairs)]
        ids = [[1 + sum(map(ord, word)) % (WORDS - 1) for word in text.split()][:LENGTH]
               for text in together]  # fmt: skip
        if padding == "max_length":
            ids = [row + [0] * (LENGTH - len(row)) for row in ids]
        return {"input_ids": ids, "attention_mask": [[int(i > 0) for i in row] for row in ids]}


def pretrained(*_: Any, num_labels: int = 2, **__: Any) -> torch.nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=LENGTH, num_labels=num_labels,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def sentences(*_: Any, **__: Any) -> Any:
    """A data set of pairs of sentences and labels, by part."""
    from datasets import Dataset, DatasetDict

    draw, parts = np.random.default_rng(0), {}
    for part in ("train", "validation", "test"):
        rows = [" ".join(draw.choice(list("abcdefgh"), draw.integers(3, 6))) for _ in range(COUNT)]
        label = [int("a" in row) for row in rows]
        columns = {"sentence1": rows, "sentence2": rows[::-1], "label": label}
        parts[part] = Dataset.from_dict({**columns, "idx": list(range(COUNT))})
    return DatasetDict(parts)


class Accuracy:
    """The metric of that name."""

    def __init__(self) -> None:
        self.hits: list[float] = []

    def add_batch(self, predictions: Any, references: Any) -> None:
        self.hits += (predictions == references).float().tolist()

    def compute(self, **_: Any) -> dict[str, float]:
        found, self.hits = float(np.mean(self.hits)), []
        return {"accuracy": found}


def partitioned(dataset: str, partitioners: dict[str, Any], **_: Any) -> Any:
    from datasets import Dataset

    from PIL import Image

    images = Coloured()
    pictures = [Image.fromarray(image) for image in images.data]
    whole = Dataset.from_dict({"img": pictures, "label": images.targets.tolist()})
    return types.SimpleNamespace(load_partition=lambda number, *_: whole)


def module(name: str, **contents: Any) -> None:
    """A library that is not needed for what stands in for it."""
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(contents)


def stand_in(script: str) -> None:
    """Put everything that a script would download in place."""
    torchvision()
    module("evaluate", load=lambda *_: Accuracy())
    module("flwr_datasets", FederatedDataset=partitioned)
    module("flwr_datasets.partitioner", IidPartitioner=lambda num_partitions: None)
    if script.startswith(("huggingface", "accelerate", "peft_lora")):
        import datasets
        import transformers

        datasets.load_dataset = sentences
        transformers.AutoTokenizer.from_pretrained = Tokenizer.from_pretrained
        transformers.AutoModelForSequenceClassification.from_pretrained = pretrained


if __name__ == "__main__":
    name = sys.argv[1]
    stand_in(name)
    sys.argv = sys.argv[1:]
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")

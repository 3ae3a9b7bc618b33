"""The networks that benchmarks/gradients.py times, with a batch for each.

Those of transformers and peft are their own code with small or usual configurations and random
weights; a row is left out, with the reason, where a package is not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forethought.models import build

VOCABULARY = 1000


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
        self.table = nn.Embedding(VOCABULARY, width)
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
        self.table = nn.Embedding(VOCABULARY, 64)
        self.lstm = layer(64, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.table(x))[0][:, -1])
        return out


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


def tempered() -> nn.Module:
    """The CNN of Papernot et al. (2021) for MNIST."""
    return build("tempered-cnn", inputs=(1, 28, 28), classes=10, seed=0)


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


def weight_normed() -> nn.Module:
    """The CNN with weight normalisation of every convolution."""
    network = cnn()
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            nn.utils.parametrizations.weight_norm(layer)
    return network


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


def _transformers() -> Any:
    """transformers, where torchvision beside it is built for another torch or missing."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except RuntimeError:  # built against CUDA: its networks work, its operators are not needed
        operators = ("(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",)
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", operators[0])
        importlib.import_module("torchvision")
    return importlib.import_module("transformers")


def bert() -> nn.Module:
    library = _transformers()
    config = library.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    found: nn.Module = library.BertForSequenceClassification(config)
    return found


def bert_lora() -> nn.Module:
    _transformers()
    peft = importlib.import_module("peft")
    config = peft.LoraConfig(
        r=8, target_modules=["query", "value"], task_type="SEQ_CLS", lora_dropout=0.0
    )
    found: nn.Module = peft.get_peft_model(bert(), config)
    return found


def gpt2() -> nn.Module:
    """GPT-2 as published (124 million parameters), classifying the last token."""
    library = _transformers()
    found: nn.Module = library.GPT2ForSequenceClassification(library.GPT2Config(pad_token_id=0))
    return found


def vit() -> nn.Module:
    library = _transformers()
    config = library.ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=10,
    )
    found: nn.Module = library.ViTForImageClassification(config)
    return found


def swin() -> nn.Module:
    library = _transformers()
    config = library.SwinConfig(
        image_size=64, patch_size=2, window_size=4, num_labels=10, drop_path_rate=0.0
    )  # widths and depths of Swin-T
    found: nn.Module = library.SwinForImageClassification(config)
    return found


Batch = tuple[Any, Tensor]


def images(*shape: int) -> Callable[[int], Batch]:
    """Random images with labels of ten classes."""
    return lambda batch: (torch.randn(batch, *shape), torch.randint(0, 10, (batch,)))


def named_images(*shape: int) -> Callable[[int], Batch]:
    """The same for a model that takes ``pixel_values``."""
    return lambda batch: (
        {"pixel_values": torch.randn(batch, *shape)},
        torch.randint(0, 10, (batch,)),
    )


def sentences(length: int) -> Callable[[int], Batch]:
    """Random tokens with labels of two classes."""
    return lambda batch: (
        torch.randint(0, VOCABULARY, (batch, length)),
        torch.randint(0, 2, (batch,)),
    )


def masked(length: int) -> Callable[[int], Batch]:
    """Sentences of different lengths, padded, with their mask."""

    def make(batch: int) -> Batch:
        lengths = torch.randint(length // 2, length + 1, (batch, 1))
        mask = (torch.arange(length) < lengths).long()
        tokens = torch.randint(1, VOCABULARY, (batch, length)) * mask
        return {"input_ids": tokens, "attention_mask": mask}, torch.randint(0, 2, (batch,))

    return make


@dataclass(frozen=True)
class Row:
    """A network, its batch, and goals: a private step's time and memory over an ordinary one's.

    None: no goal was set.
    """

    model: Callable[[], nn.Module]
    data: Callable[[int], Batch]
    batch: int
    time: float | None = None
    memory: float | None = None


ROWS: dict[str, Row] = {
    "mlp-512": Row(mlp, images(784), 512, 1.1, 1.2),
    "mlp-64": Row(mlp, images(784), 64, 1.1, 1.2),
    "lenet5": Row(lenet5, images(1, 28, 28), 256, 1.1, 1.0),
    "cnn": Row(cnn, images(3, 32, 32), 256, 1.15, 1.2),
    "tempered-cnn": Row(tempered, images(1, 28, 28), 256),
    "resnet18-gn": Row(resnet18, images(3, 32, 32), 32, 1.1, 1.3),
    "encoder": Row(lambda: Encoder(4, 256, 4), sentences(128), 32, 1.1, 1.3),
    "lstm": Row(lambda: Recurrent(nn.LSTM, 256), sentences(64), 64, 1.3, 1.3),
    "vit-tiny": Row(vit, named_images(3, 32, 32), 32, 1.15, 1.3),
    "gpt2": Row(gpt2, masked(64), 4, 1.08, 1.3),
    "bert": Row(bert, masked(128), 16, 1.12, 1.3),
    "bert-lora": Row(bert_lora, masked(128), 16, 1.03, 1.03),
    "swin-t": Row(swin, named_images(3, 64, 64), 8),
    "weight-norm-cnn": Row(weight_normed, images(3, 32, 32), 256, 1.3, 1.4),
}

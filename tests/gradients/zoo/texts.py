"""Small configurations and batches of texts, for transformers and peft."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from drawn import randint

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "num_labels": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}


def tokens(examples: int, more: bool) -> dict[str, Tensor]:
    """Token ids and masks; the first is full and the others padded, so branches on masks differ."""
    length = 12 if more else 8
    ids = randint(3, 50, (examples, length))
    mask = torch.ones_like(ids)
    for i in range(1, examples):
        mask[i, length - i :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def labelled(examples: int, more: bool) -> tuple[Any, Tensor]:
    return tokens(examples, more), randint(0, 5, (examples,))


def with_own_labels(examples: int, more: bool) -> tuple[Any, Tensor]:
    inputs, labels = labelled(examples, more)
    return {**inputs, "labels": labels}, labels


def next_tokens(examples: int, more: bool) -> tuple[Any, Tensor]:
    inputs = tokens(examples, more)
    return inputs, inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)


def with_next_tokens(examples: int, more: bool) -> tuple[Any, Tensor]:
    inputs, labels = next_tokens(examples, more)
    return {**inputs, "labels": labels}, labels


def own_loss(outputs: Any, targets: Any) -> Tensor:
    """What the model computed itself: a mean over one example where each is alone."""
    return outputs.loss


def language(outputs: Any, targets: Tensor) -> Tensor:
    """Mean cross entropy of every example's own next tokens."""
    logits = outputs.logits[:, -targets.shape[1] :]  # a prompt in front has no targets
    labels = targets[:, 1:]
    losses = F.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels, reduction="none", ignore_index=-100
    )
    return losses.sum(1) / (labels != -100).sum(1)

"""Embeddings: the gradient is a sum of one-hot rows, never batch × vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.terms import OneHot, Outer, Rule, Term, Use, register, wide


def _outer(use: Use, index: Tensor, gradient: Tensor) -> Outer:
    size = use.parameters["weight"].shape[0]
    padding = use.arguments.get("padding_idx")
    if padding is not None:
        gradient = gradient.masked_fill((index == padding % size).unsqueeze(2), 0)
    return Outer([(OneHot(index.long(), size), gradient)])


def _embedding(use: Use) -> Iterator[tuple[str, Term]]:
    index = use.saved["input"].flatten(1) if use.saved["input"].dim() > 1 else None
    index = use.saved["input"].unsqueeze(1) if index is None else index
    gradient = use.gradient.reshape(*index.shape, use.gradient.shape[-1])
    yield "weight", _outer(use, index, gradient)


def _bag(use: Use) -> Iterator[tuple[str, Term]]:
    # A bag is a weighted sum of rows; "mean" divides by the entries that are not padding.
    index = use.saved["input"]
    weights = use.saved.get("per_sample_weights")
    each = torch.ones_like(index, dtype=use.gradient.dtype) if weights is None else weights
    if use.arguments.get("mode", "mean") == "mean":
        padding = use.arguments.get("padding_idx")
        counted = torch.ones_like(index) if padding is None else (index != padding).long()
        each = each / counted.sum(-1, keepdim=True).clamp(min=1)
    gradient = use.gradient.unsqueeze(-2) * each.unsqueeze(-1)
    yield "weight", _outer(use, index.flatten(1), wide(gradient).flatten(1, -2))


def _plain(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    # max_norm rewrites the weights while reading them; frequencies mix the examples of a batch.
    return not arguments.get("max_norm") and not arguments.get("scale_grad_by_freq")


def _plain_bags(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    return (
        _plain(arguments, parameters)
        and arguments.get("offsets") is None
        and arguments.get("mode", "mean") != "max"
    )


register(
    Rule(
        "embedding",
        (
            "input",
            "weight",
            "padding_idx",
            "max_norm",
            "norm_type",
            "scale_grad_by_freq",
            "sparse",
        ),
        ("weight",),
        ("input",),
        _embedding,
        _plain,
    ),
    F.embedding,
)
register(
    Rule(
        "embedding_bag",
        (
            "input",
            "weight",
            "offsets",
            "max_norm",
            "norm_type",
            "scale_grad_by_freq",
            "mode",
            "sparse",
            "per_sample_weights",
            "include_last_offset",
            "padding_idx",
        ),
        ("weight",),
        ("input", "per_sample_weights"),
        _bag,
        _plain_bags,
    ),
    F.embedding_bag,
)

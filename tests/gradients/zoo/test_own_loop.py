"""transformers' and peft's models in a loop of one's own: the weights of forethought.train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import forethought as ft
from drawn import randint, reseed, stream

COUNT = 60
PLAN = ft.Plan(
    ft.Mechanism(ft.Rounds(1.0, 3, ft.Poisson(0.2))),
    COUNT,
    1e-5,
    averaging=ft.Averaging("none"),
    optimizer=ft.Optimizer("sgd", 0.1, ()),
)
SEEDS = {"seed": 1, "noise_seed": 2}


def tokens() -> tuple[Tensor, Tensor]:
    ids = randint(1, 50, (COUNT, 8), generator=stream(0))
    return ids, (ids[:, 0] > 25).long()


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    reseed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    return model


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    reseed(0)
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    changed = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model: nn.Module = get_peft_model(GPT2LMHeadModel(config), changed)
    return model


class Named(Dataset):
    """Records as transformers' trainers take them."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        ids, labels = tokens()
        mask = torch.ones_like(ids[number])
        return {"input_ids": ids[number], "attention_mask": mask, "labels": labels[number]}


def classes(outputs: Any, labels: Any) -> Any:
    return F.cross_entropy(outputs.logits, labels, reduction="none")


def next_token(outputs: Any, ids: Any) -> Any:
    shifted = outputs.logits[:, :-1].transpose(1, 2)
    return F.cross_entropy(shifted, ids[:, 1:], reduction="none").mean(1)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "loss"), [(bert, classes), (lora, next_token)])
def test_a_loop_over_named_tensors_is_train(
    make: Callable[[], nn.Module], loss: Callable[[Any, Any], Any]
) -> None:
    ids, _ = tokens()
    records: Any = Named() if make is bert else ({"input_ids": ids}, ids)
    expected, model = make(), make()
    kind = type(model)
    ft.train(expected, records, PLAN, loss=loss, **SEEDS)
    own: Any = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    loader, own = ft.private(model, own, records, PLAN, **SEEDS)
    for batch in loader:
        if isinstance(batch, dict):
            targets = batch.pop("labels")
            inputs = batch
        else:
            inputs, targets = batch
        loss(model(**inputs), targets).backward()
        own.step()
    own.finish()
    assert type(model) is kind
    for (name, found), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, wanted), name
    assert not torch.equal(
        torch.cat([p.flatten() for p in model.parameters()]),
        torch.cat([p.flatten() for p in make().parameters()]),
    )

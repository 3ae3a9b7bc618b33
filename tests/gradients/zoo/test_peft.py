"""Adapters as peft makes them: what is trained is small, zero at first, and often derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from zoo.oracle import Case, Make, classify, collected, judge
from zoo.texts import GPT, SMALL, labelled, language, next_tokens

CASES: dict[str, Make] = {}


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**SMALL))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**{**SMALL, **GPT}))


def adapted(
    name: str,
    kind: str,
    base: Callable[[], Any] = bert,
    head: str = "base_model.model.classifier",
    prepare: Callable[[Any], Any] | None = None,
    rtol: float = 2e-4,
    exact: float | None = 1e-7,
    alone: bool = False,
    **how: Any,
) -> None:
    """Add ``base`` with peft's adapter ``kind`` on it, configured by ``how``."""
    task = "SEQ_CLS" if base is bert else "CAUSAL_LM"

    def make() -> Case:
        import peft

        config = getattr(peft, f"{kind}Config")(task_type=task, **how)
        model = peft.get_peft_model(base(), config).train()
        if prepare is not None:
            prepare(model)
        if base is bert:
            return Case(model, labelled, classify, head, rtol, exact, alone)
        return Case(model, next_tokens, language, head, rtol, exact, alone)

    CASES[name] = make


QV = {"target_modules": ["query", "value"]}
GPT_QKV = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
IN_GPT = {"base": gpt2, "head": "base_model.model.transformer.wte"}
adapted("lora", "Lora", r=4, lora_alpha=8, lora_dropout=0.1, **QV)
adapted("lora_by_rank_stabilised", "Lora", r=4, use_rslora=True, **QV)
adapted("lora_with_bias", "Lora", r=4, bias="lora_only", **QV)
adapted("lora_everywhere", "Lora", r=2, target_modules="all-linear")
adapted("lora_on_conv1d", "Lora", r=4, **GPT_QKV, **IN_GPT)
adapted("lora_on_embeddings", "Lora", r=4, target_modules=["wte", "c_attn"], fan_in_fan_out=True,
        **IN_GPT)  # fmt: skip
adapted("lora_and_trained_embeddings", "Lora", r=4, modules_to_save=["wte"], **GPT_QKV, **IN_GPT)
adapted("dora", "Lora", r=4, use_dora=True, **QV)
adapted("dora_on_conv1d", "Lora", r=4, use_dora=True, **GPT_QKV, **IN_GPT)
adapted("ia3", "IA3", target_modules=["key", "value", "output.dense"],
        feedforward_modules=["output.dense"])  # fmt: skip
adapted("adalora", "AdaLora", init_r=4, target_r=2, total_step=10, **QV)
# Its product is an autograd.Function of its own.
adapted("loha", "LoHa", r=4, alone=True, **QV)
adapted("lokr", "LoKr", r=4, **QV)
adapted("vera", "Vera", r=4, projection_prng_key=1, **QV)
adapted("oft", "OFT", r=0, oft_block_size=8, use_cayley_neumann=False, **QV)
adapted("boft", "BOFT", boft_block_size=4, **QV)
adapted("hra", "HRA", r=4, **QV)
adapted("layer_norm_tuning", "LNTuning", target_modules=["LayerNorm"])
adapted("prompt_tuning", "PromptTuning", head="base_model.classifier", num_virtual_tokens=3)
adapted("prompt_tuning_gpt2", "PromptTuning", gpt2, "prompt_encoder", num_virtual_tokens=3)
adapted(
    "p_tuning",
    "PromptEncoder",
    head="base_model.classifier",
    num_virtual_tokens=3,
    encoder_hidden_size=16,
)
adapted("prefix_tuning_gpt2", "PrefixTuning", gpt2, "prompt_encoder", num_virtual_tokens=3)
adapted("lora_with_checkpointing", "Lora", r=4, **QV,
        prepare=lambda model: model.gradient_checkpointing_enable({"use_reentrant": False}),
        )  # fmt: skip
adapted("lora_in_bfloat16", "Lora", r=4, **QV, rtol=6e-2, exact=None,
        prepare=lambda model: model.bfloat16())  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("make", collected(CASES, quick=("lora_on_conv1d",)))
def test_peft(make: Make) -> None:
    judge(make)

"""transformers' networks, small: dict inputs with masks, outputs as objects, tied embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo.oracle import Case, Make, classify, collected, judge, spread
from zoo.texts import (
    GPT,
    SMALL,
    labelled,
    language,
    next_tokens,
    own_loss,
    with_next_tokens,
    with_own_labels,
)

from drawn import randint, randn

CASES: dict[str, Make] = {}

GROUPED = {"num_key_value_heads": 2, "head_dim": 8}


def add(
    name: str,
    network: str,
    config: str,
    head: str,
    batch: Callable[[int, bool], tuple[Any, Any]] = labelled,
    loss: Callable[[Any, Any], Tensor] = classify,
    *,
    prepare: Callable[[Any], Any] | None = None,
    alone: bool = False,
    exact: float | None = 1e-7,
    rtol: float = 2e-4,
    without: tuple[str, ...] = (),
    **how: Any,
) -> None:
    """Add transformers' class ``network`` of a small ``config``, changed by ``how``."""

    def make() -> Case:
        import transformers

        small = {name: value for name, value in SMALL.items() if name not in without}
        made = getattr(transformers, config)(**{**small, **how})
        model = getattr(transformers, network)(made).train()
        if prepare is not None:
            model = prepare(model) or model
        return Case(model, batch, loss, head, rtol=rtol, exact=exact, alone=alone)

    CASES[name] = make


def classifier(family: str, head: str = "classifier", **how: Any) -> None:
    add(family.lower(), f"{family}ForSequenceClassification", f"{family}Config", head, **how)


def generator(family: str, network: str = "", head: str = "lm_head", **how: Any) -> None:
    network = network or f"{family}ForCausalLM"
    add(family.lower(), network, f"{family}Config", head, next_tokens, language, **how)


classifier("Bert")
classifier("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=64)
classifier("Roberta")
classifier("Albert", embedding_size=16)
classifier("Electra", embedding_size=16)
classifier("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"])
classifier("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"])
classifier("MPNet")
classifier("ConvBert", embedding_size=16, head_ratio=2, conv_kernel_size=3)
classifier("Nystromformer", num_landmarks=4, segment_means_seq_len=4)
classifier("SqueezeBert", embedding_size=32)
classifier("ModernBert", global_attn_every_n_layers=2, local_attention=4, cls_token_id=1,
           sep_token_id=2)  # fmt: skip
classifier("RoFormer", embedding_size=16)
classifier(
    "XLNet",
    "logits_proj",
    without=("max_position_embeddings",),
    d_model=32,
    n_layer=2,
    n_head=4,
    d_inner=64,
)
add("bert_own_loss", "BertForSequenceClassification", "BertConfig", "classifier",
    with_own_labels, own_loss)  # fmt: skip
add("bert_eager_attention", "BertForSequenceClassification", "BertConfig", "classifier",
    attn_implementation="eager")  # fmt: skip
add("bert_tied_language_model", "BertForMaskedLM", "BertConfig", "cls", with_next_tokens, own_loss,
    tie_word_embeddings=True)  # fmt: skip
add("bert_feed_forward_in_chunks", "BertForSequenceClassification", "BertConfig", "classifier",
    chunk_size_feed_forward=4)  # fmt: skip
add("gpt2_classifier", "GPT2ForSequenceClassification", "GPT2Config", "score", **GPT)
add("gpt2_own_loss", "GPT2LMHeadModel", "GPT2Config", "transformer.wte",
    with_next_tokens, own_loss, **GPT)  # fmt: skip
generator("GPT2", "GPT2LMHeadModel", "transformer.wte", **GPT)
generator("GPTNeo", head="transformer.wte", num_layers=2, num_heads=4, window_size=4,
          attention_types=[[["global", "local"], 1]])  # fmt: skip
generator("GPTNeoX", head="lm_head")
generator("GPTJ", rotary_dim=4, **GPT)
generator("OPT", head="model.decoder.embed_tokens", ffn_dim=64, word_embed_proj_dim=32)
# Its GELU is an autograd.Function of its own.
generator("Bloom", head="transformer.word_embeddings", n_layer=2, n_head=4, alone=True)
generator("Falcon", head="transformer.word_embeddings", alibi=False, new_decoder_architecture=False)
generator("Llama", **GROUPED)
generator("Mistral", sliding_window=4, **GROUPED)
generator("Qwen2", **GROUPED)
generator("Qwen3", **GROUPED)
generator("Gemma", head="model.embed_tokens", **GROUPED)
generator("Gemma2", head="model.embed_tokens", sliding_window=4, **GROUPED)
generator("Phi", partial_rotary_factor=0.5)
generator("StableLm", partial_rotary_factor=0.5, **GROUPED)
generator("Olmo2", **GROUPED)
generator("Mixtral", num_local_experts=2, num_experts_per_tok=1, alone=True, exact=None, **GROUPED)
generator("Mamba", head="backbone.embeddings", state_size=4, time_step_rank=4)


def pairs(examples: int, more: bool) -> tuple[Any, Tensor]:
    inputs, labels = next_tokens(examples, more)
    return {**inputs, "labels": labels[:, :6].clamp(min=3)}, labels


def translator(family: str, head: str, **how: Any) -> None:
    name = f"{family}ForConditionalGeneration" if family != "Marian" else "MarianMTModel"
    add(family.lower(), name, f"{family}Config", head, pairs, own_loss, **how)


BART = {
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "decoder_start_token_id": 1,
}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 1, "relative_attention_num_buckets": 8}  # fmt: skip
translator("T5", "shared", **T5)
translator("MT5", "shared", feed_forward_proj="gated-gelu", **T5)
translator("Bart", "model.shared", **BART)
translator("Marian", "model.shared", **BART)


def pictures(side: int) -> Callable[[int, bool], tuple[Any, Any]]:
    def batch(examples: int, more: bool) -> tuple[Any, Any]:
        values = randn(examples, 3, side, side)
        return {"pixel_values": values}, randint(0, 5, (examples,))

    return batch


def seer(family: str, head: str = "classifier", side: int = 16, **how: Any) -> None:
    how = {"image_size": side, "patch_size": 4, "hidden_act": "gelu", **how}
    add(family.lower(), f"{family}ForImageClassification", f"{family}Config", head,
        pictures(side), **how)  # fmt: skip


seer("ViT")
seer("DeiT")
seer("Beit", use_relative_position_bias=True)
seer("Dinov2")
seer(
    "Swin",
    without=("num_attention_heads", "hidden_size"),
    embed_dim=16,
    depths=[1, 1],
    num_heads=[2, 2],
    window_size=2,
)
seer(
    "ConvNext",
    without=("hidden_size", "num_hidden_layers"),
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    side=32,
)
add("clip_vision", "CLIPVisionModelWithProjection", "CLIPVisionConfig", "visual_projection",
    pictures(16), spread, image_size=16, patch_size=4, projection_dim=8)  # fmt: skip


def recordings(examples: int, more: bool) -> tuple[Any, Any]:
    length = 500 if more else 400
    return {"input_values": randn(examples, length)}, randint(0, 5, (examples,))


def spectra(examples: int, more: bool) -> tuple[Any, Any]:
    ids = randint(3, 50, (examples, 6))
    inputs = {"input_features": randn(examples, 8, 40), "labels": ids}
    return inputs, ids


WAVES = {
    "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16,
    "apply_spec_augment": False, "layerdrop": 0.0,
}  # fmt: skip
add("wav2vec2", "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", "classifier", recordings,
    rtol=1e-3, **WAVES)  # fmt: skip
add("hubert", "HubertForSequenceClassification", "HubertConfig", "classifier", recordings,
    rtol=1e-3, **WAVES)  # fmt: skip
add("whisper", "WhisperForConditionalGeneration", "WhisperConfig", "model.decoder.embed_tokens",
    spectra, own_loss, num_mel_bins=8, max_source_positions=20, max_target_positions=20,
    **BART)  # fmt: skip


def with_checkpointing(reentrant: bool) -> Callable[[Any], None]:
    def prepare(model: Any) -> None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})

    return prepare


add("bert_with_checkpointing", "BertForSequenceClassification", "BertConfig", "classifier",
    prepare=with_checkpointing(False))  # fmt: skip
add("gpt2_with_checkpointing", "GPT2LMHeadModel", "GPT2Config", "transformer.wte",
    with_next_tokens, own_loss, prepare=with_checkpointing(False), **GPT)  # fmt: skip
add("llama_with_reentrant_checkpointing", "LlamaForCausalLM", "LlamaConfig", "lm_head",
    next_tokens, language, prepare=with_checkpointing(True), alone=True, **GROUPED)  # fmt: skip
add("llama_in_bfloat16", "LlamaForCausalLM", "LlamaConfig", "lm_head", next_tokens, language,
    prepare=lambda model: model.bfloat16(), rtol=6e-2, exact=None, **GROUPED)  # fmt: skip
add("bert_in_bfloat16", "BertForSequenceClassification", "BertConfig", "classifier",
    prepare=lambda model: model.bfloat16(), rtol=6e-2, exact=None)  # fmt: skip


def with_autocast(make: Make) -> Make:
    def under() -> Case:
        case = make()
        case.around = lambda: torch.autocast("cpu", torch.bfloat16)
        case.rtol, case.exact = 6e-2, None
        return case

    return under


CASES["bert_under_autocast"] = with_autocast(CASES["bert"])
CASES["gpt2_under_autocast"] = with_autocast(CASES["gpt2_own_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("make", collected(CASES, quick=("bert", "gpt2_own_loss")))
def test_transformers(make: Make) -> None:
    judge(make)

"""clipped_sum against autograd, one example at a time, over many architectures."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from drawn import initialised, rand, randint, randn, reseed
from forethought.gradients import SlowGradientsWarning, clipped_sum
from forethought.gradients.sums import CHARGE

B = 5
Case = tuple[nn.Module, Any]
ZOO: dict[str, Callable[[], Case]] = {}


def architecture(make: Callable[[], Case]) -> Callable[[], Case]:
    ZOO[make.__name__] = make
    return make


class Run(nn.Module):
    """A model from a function of (module, *inputs), with named submodules and parameters."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self.function = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def leaves(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, dict) else outputs
    return [leaf for value in values for leaf in leaves(value)]


def loss(outputs: Any, targets: Tensor) -> Tensor:
    """A loss of every number of every output, one value per example."""
    total = torch.zeros_like(targets)
    for number, output in enumerate(leaves(outputs)):
        flat = output.reshape(len(targets), -1)
        total = total + (torch.tanh(flat + number) - targets.unsqueeze(1)).square().sum(1)
    return total


# Linear maps


@architecture
def mlp() -> Case:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), randn(B, 6)


@architecture
def mlp_without_bias_and_inplace() -> Case:
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(inplace=True), nn.Linear(5, 3))
    return model, randn(B, 6)


@architecture
def linear_over_sequence_inplace() -> Case:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    return model, randn(B, 4, 6)


@architecture
def sequence_as_long_as_the_batch_and_second() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = torch.tanh(m.one(x.transpose(0, 1)))  # (time, batch, features), time == batch
        return m.two(y).transpose(0, 1)

    return Run(forward, one=nn.Linear(3, B), two=nn.Linear(B, 2)), randn(B, B, 3)


@architecture
def batch_folded_with_time() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.one(x.reshape(-1, 3)).tanh()  # batch slowest
        z = y.view(B_of(x), 4, 5).transpose(0, 1).reshape(-1, 5)  # batch fastest
        return m.two(z).view(4, -1, 2).transpose(0, 1)

    return Run(forward, one=nn.Linear(3, 5), two=nn.Linear(5, 2)), randn(B, 4, 3)


def B_of(x: Tensor) -> int:  # noqa: N802
    return x.shape[0]


@architecture
def reused_weight() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.one(torch.tanh(m.one(torch.tanh(m.one(x)))))

    return Run(forward, one=nn.Linear(4, 4)), randn(B, 4)


@architecture
def weight_reused_over_sequences_of_two_lengths() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.one(torch.tanh(m.one(x))[:, :2])

    return Run(forward, one=nn.Linear(4, 4)), randn(B, 5, 4)


@architecture
def tied_autoencoder_with_transposed_weight() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(F.linear(x, m.weight, m.inner))
        return F.linear(hidden, m.weight.t(), m.outer)

    parts = {"weight": randn(3, 6), "inner": randn(3), "outer": randn(6)}
    return Run(forward, **parts), randn(B, 6)


@architecture
def parameters_outside_layers() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x @ m.weight + m.bias) * m.scale
        return (y - m.shift) / m.divisor

    parts = {
        "weight": randn(4, 3),
        "bias": randn(3),
        "scale": randn(3),
        "shift": randn(1, 3),
        "divisor": 1 + rand(3),
    }
    return Run(forward, **parts), randn(B, 2, 4)


@architecture
def matrix_on_the_left_and_vector() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = torch.tanh(torch.matmul(m.left, x))  # (3, 4) @ (B, 4, 5)
        return torch.cat([y @ m.vector, torch.mm(m.left, x[:, :, 0].t()).t()], 1)

    return Run(forward, left=randn(3, 4), vector=randn(5)), randn(B, 4, 5)


@architecture
def addmm_and_views() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = torch.addmm(m.bias, x, m.both[:, :3])
        z = torch.addmm(m.bias, x, m.both[:, 3:])
        return torch.tanh(y) * torch.tanh(z)

    return Run(forward, both=randn(4, 6), bias=randn(3)), randn(B, 4)


@architecture
def overlapping_views() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return F.linear(x, m.weight[:3]) + F.linear(x, m.weight[1:4]).tanh()

    return Run(forward, weight=randn(4, 5)), randn(B, 2, 5)


@architecture
def bilinear() -> Case:
    def forward(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return m.map(x, y)

    return Run(forward, map=nn.Bilinear(3, 4, 2)), (randn(B, 3), randn(B, 4))


@architecture
def positions_scales_and_class_token() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1) + m.position
        return y * m.scale + m.shift * y.roll(1, 1)

    parts = {
        "token": randn(1, 1, 3),
        "position": randn(1, 5, 3),
        "scale": randn(3),
        "shift": randn(5, 1),
    }
    return Run(forward, **parts), randn(B, 4, 3)


@architecture
def scalar_parameter_and_prelu() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.one(m.two(x)) * m.scale

    parts = {"one": nn.PReLU(), "two": nn.PReLU(4), "scale": torch.tensor(1.5)}
    return Run(forward, **parts), randn(B, 4, 3)


@architecture
def unused_parameter() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.one(x)

    return Run(forward, one=nn.Linear(3, 2), other=nn.Linear(3, 2)), randn(B, 3)


@architecture
def lora_with_frozen_base() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.base(x) + m.up(m.down(x)) * 0.5

    base = nn.Linear(6, 5).requires_grad_(False)
    parts = {"base": base, "down": nn.Linear(6, 2, bias=False), "up": nn.Linear(2, 5, bias=False)}
    return Run(forward, **parts), randn(B, 3, 6)


@architecture
def frozen_bias_and_frozen_first_layer() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model, randn(B, 4)


@architecture
def dict_in_and_out() -> Case:
    def forward(m: Any, first: Tensor, second: Tensor) -> dict[str, Any]:
        return {"a": m.one(first), "b": (m.one(second), m.two(first))}

    inputs = {"first": randn(B, 3), "second": randn(B, 2, 3)}
    return Run(forward, one=nn.Linear(3, 2), two=nn.Linear(3, 1)), inputs


# Convolutions


@architecture
def conv1d_every_argument() -> Case:
    model = nn.Sequential(
        nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2),
        nn.Tanh(),
        nn.Conv1d(6, 3, 2, padding="same"),
    )
    return model, randn(B, 4, 11)


@architecture
def conv2d_stride_padding() -> Case:
    model = nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Tanh(),
        nn.Conv2d(4, 3, 1, stride=2),
        nn.Conv2d(3, 3, 1, bias=False),
    )
    return model, randn(B, 2, 7, 6)


@architecture
def conv2d_dilation_same_and_reflect() -> Case:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, dilation=2, padding="same"),
        nn.Tanh(),
        nn.Conv2d(4, 2, 4, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 3, padding="valid"),
    )
    return model, randn(B, 2, 6, 6)


@architecture
def conv2d_small_image_many_channels() -> Case:
    model = nn.Sequential(
        nn.Conv2d(24, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 24, 3, stride=2, groups=2)
    )
    return model, randn(B, 24, 4, 4)


@architecture
def conv3d() -> Case:
    model = nn.Sequential(
        nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=1), nn.Tanh(), nn.Conv3d(3, 2, 2)
    )
    return model, randn(B, 2, 3, 4, 3)


@architecture
def transposed_convolutions() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = torch.tanh(m.one(x))
        return m.three(torch.tanh(m.two(y)).flatten(2))

    parts = {
        "one": nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
        "two": nn.ConvTranspose2d(4, 4, 2, groups=2, dilation=2, bias=False),
        "three": nn.ConvTranspose1d(4, 2, 3, stride=3),
    }
    return Run(forward, **parts), randn(B, 2, 3, 3)


@architecture
def transposed_convolution_3d() -> Case:
    return nn.ConvTranspose3d(2, 3, 2, stride=2), randn(B, 2, 2, 3, 2)


@architecture
def max_pools_of_every_form() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.first(x)
        y = F.max_pool2d(y, 2, 1) + F.max_pool2d(y, (4, 2), (1, 1), (1, 0))
        y = m.second(y).clamp(-0.3, 0.3)  # equal numbers in a window
        least, places = F.max_pool2d(-y, 2, return_indices=True)
        back = F.max_unpool2d(least, places, 2, output_size=y.shape[-2:])
        wide = torch.max_pool2d(y, [2, 2], [2, 1], 0, [1, 2], True)
        alone = torch.stack([F.max_pool2d(image, 3, stride=2) for image in y])  # no batch dimension
        five = F.max_pool2d(F.max_pool2d(y.unsqueeze(1).flatten(0, 1), 2), kernel_size=2)
        parts = (F.max_pool2d(y, 3, padding=1), back, wide, alone, five)
        viewed = F.max_pool2d(y, 2).view(len(y), -1)  # as models of the field flatten
        return torch.stack([part.square().flatten(1).sum(1) for part in (*parts, viewed)], 1)

    return Run(forward, first=nn.Conv2d(2, 4, 3), second=nn.Conv2d(4, 3, 2)), randn(B, 2, 11, 10)


@architecture
def layouts_asked_for_in_the_forward_pass() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.one(x.contiguous(memory_format=torch.channels_last))
        y = y if y.is_contiguous(memory_format=torch.channels_last) else y.tanh()
        y = m.two(y.to(memory_format=torch.channels_last))
        y = y.clone(memory_format=torch.channels_last) + torch.zeros_like(
            y, memory_format=torch.channels_last
        )
        return y.contiguous().view(len(y), -1)

    return Run(forward, one=nn.Conv2d(2, 3, 3), two=nn.Conv2d(3, 2, 2)), randn(B, 2, 6, 5)


@architecture
def frames_folded_into_the_batch() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.norm(m.conv(x.flatten(0, 1))).tanh()
        return m.head(m.wide(y).flatten(1).view(x.shape[0], 3, -1))

    parts = {
        "conv": nn.Conv2d(2, 4, 3, padding=1),
        "norm": nn.GroupNorm(2, 4),
        "wide": nn.Conv2d(4, 2, 1),
        "head": nn.Linear(32, 2),
    }
    return Run(forward, **parts), randn(B, 3, 2, 4, 4)


@architecture
def reused_convolution() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.conv(torch.tanh(m.conv(x)))

    return Run(forward, conv=nn.Conv2d(3, 3, 3, padding=1)), randn(B, 3, 4, 4)


@architecture
def lenet5() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 20),
        nn.Tanh(),
        nn.Linear(20, 10),
    )
    return model, randn(B, 1, 16, 16)


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(2, outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(2, outer)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.GroupNorm(2, outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += self.short(x)
        return F.relu(y)


@architecture
def resnet_with_group_norm() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1, bias=False),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        Block(4, 4, 1),
        Block(4, 8, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    return model, randn(B, 3, 8, 8)


# Normalisation


@architecture
def every_normalisation() -> Case:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm([4, 5, 3]),
        nn.Tanh(),
        nn.BatchNorm2d(4).eval(),
        nn.LayerNorm(3, bias=False),
        nn.RMSNorm([5, 3]),
    )
    return model, randn(B, 2, 5, 3)


@architecture
def norms_over_vectors() -> Case:
    model = nn.Sequential(nn.GroupNorm(2, 6), nn.LayerNorm(6, eps=1e-3), nn.RMSNorm(6, eps=1e-4))
    return model, randn(B, 6)


@architecture
def norms_over_sequences() -> Case:
    model = nn.Sequential(
        nn.InstanceNorm1d(4, affine=True), nn.GroupNorm(4, 4), nn.Tanh(), nn.LayerNorm(6)
    )
    return model, randn(B, 4, 6)


# Embeddings


def tokens(*shape: int, size: int = 7) -> Tensor:
    return randint(0, size, shape)


@architecture
def embedding_with_padding() -> Case:
    model = nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Flatten(), nn.Linear(24, 2))
    return model, tokens(B, 6)


@architecture
def embedding_of_one_token() -> Case:
    return nn.Sequential(nn.Embedding(7, 4), nn.Tanh()), tokens(B)


@architecture
def embedding_bags() -> Case:
    def forward(m: Any, x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(m.mean(x)) + m.sum(x) + m.weighted(x, per_sample_weights=w)

    parts = {
        "mean": nn.EmbeddingBag(7, 3, padding_idx=1),
        "sum": nn.EmbeddingBag(7, 3, mode="sum"),
        "weighted": nn.EmbeddingBag(7, 3, mode="sum"),
    }
    return Run(forward, **parts), (tokens(B, 4), rand(B, 4))


@architecture
def embedding_bag_of_largest() -> Case:
    return nn.Sequential(nn.EmbeddingBag(7, 3, mode="max", padding_idx=1), nn.Tanh()), tokens(B, 4)


@architecture
def tied_embedding_and_output() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(m.layer(m.table(x))), m.table.weight)

    return Run(forward, table=nn.Embedding(7, 4), layer=nn.Linear(4, 4)), tokens(B, 6)


@architecture
def two_embeddings_share_a_table() -> Case:
    def forward(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return m.layer(torch.tanh(m.table(x)).mean(1) * torch.tanh(m.table(y)).mean(1))

    parts = {"table": nn.Embedding(7, 4), "layer": nn.Linear(4, 2)}
    return Run(forward, **parts), (tokens(B, 3), tokens(B, 5))


# Attention


@architecture
def multihead_attention() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        return m.attention(x, x, x)

    part = nn.MultiheadAttention(6, 2, batch_first=True)
    return Run(forward, attention=part), randn(B, 4, 6)


@architecture
def cross_attention_sequence_first_with_extra_biases() -> Case:
    def forward(m: Any, x: Tensor, y: Tensor) -> Any:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
        return m.attention(x, y, y)[0].transpose(0, 1)

    part = nn.MultiheadAttention(6, 2, kdim=4, vdim=4)
    return Run(forward, attention=part), (randn(B, B, 6), randn(B, 3, 4))


@architecture
def attention_with_shared_key_and_value() -> Case:
    def forward(m: Any, x: Tensor, y: Tensor) -> Any:
        return m.attention(x, y, y, need_weights=False)[0]

    part = nn.MultiheadAttention(6, 3, batch_first=True)
    return Run(forward, attention=part), (randn(B, 4, 6), randn(B, 2, 6))


@architecture
def attention_with_bias_kv() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        return m.attention(x, x, x, need_weights=False)[0]

    part = nn.MultiheadAttention(6, 2, batch_first=True, add_bias_kv=True)
    return Run(forward, attention=part), randn(B, 4, 6)


@architecture
def transformer_encoder_with_padding_mask() -> Case:
    def forward(m: Any, x: Tensor, empty: Tensor) -> Tensor:
        y = m.encoder(x, src_key_padding_mask=empty)
        return m.head((y * (~empty).unsqueeze(2)).sum(1))

    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    empty = torch.arange(4) >= torch.tensor([4, 2, 3, 1, 4]).unsqueeze(1)
    return Run(forward, encoder=encoder, head=nn.Linear(6, 2)), (randn(B, 4, 6), empty)


@architecture
def encoder_decoder_transformer() -> Case:
    def forward(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return m.transformer(m.table(x), m.table(y))

    transformer = nn.Transformer(6, 2, 1, 1, 8, dropout=0.0, batch_first=True, norm_first=True)
    parts = {"transformer": transformer, "table": nn.Embedding(7, 6)}
    return Run(forward, **parts), (tokens(B, 4), tokens(B, 3))


@architecture
def encoder_decoder_sequence_first() -> Case:
    def forward(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return m.transformer(x.transpose(0, 1), y.transpose(0, 1)).transpose(0, 1)

    transformer = nn.Transformer(6, 2, 1, 1, 8, dropout=0.0)
    return Run(forward, transformer=transformer), (randn(B, B, 6), randn(B, 3, 6))


@architecture
def vision_transformer() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([m.token.expand(x.shape[0], -1, -1), y], 1) + m.position
        return m.head(m.norm(m.layer(y))[:, 0])

    parts = {
        "patch": nn.Conv2d(3, 6, 4, stride=4),
        "token": randn(1, 1, 6),
        "position": randn(1, 5, 6),
        "layer": nn.TransformerEncoderLayer(6, 2, 12, batch_first=True, dropout=0.0),
        "norm": nn.LayerNorm(6),
        "head": nn.Linear(6, 3),
    }
    return Run(forward, **parts), randn(B, 3, 8, 8)


def gpt_forward(m: Any, x: Tensor) -> Tensor:
    length = x.shape[1]
    y = m.table(x) + m.position(torch.arange(length, device=x.device))
    for layer in (m.first, m.second):
        z = m.norm(y)
        q, k, v = (
            part.view(x.shape[0], length, 2, 4).transpose(1, 2)
            for part in layer.packed(z).chunk(3, -1)
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + layer.out(z.transpose(1, 2).reshape(x.shape[0], length, 8))
    return F.linear(m.norm(y), m.table.weight)


@architecture
def gpt_with_tied_embedding() -> Case:
    # The positions are looked up once for all examples: that table has no rule.
    parts = {
        "table": nn.Embedding(7, 8),
        "position": nn.Embedding(5, 8),
        "norm": nn.LayerNorm(8),
        "first": nn.ModuleDict({"packed": nn.Linear(8, 24), "out": nn.Linear(8, 8)}),
        "second": nn.ModuleDict({"packed": nn.Linear(8, 24), "out": nn.Linear(8, 8)}),
    }
    for part in (parts["first"], parts["second"]):
        part.packed, part.out = part["packed"], part["out"]
    return Run(gpt_forward, **parts), tokens(B, 5)


# Recurrent


@architecture
def lstm_classifier() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(m.lstm(x)[0][:, -1])

    parts = {"lstm": nn.LSTM(3, 4, batch_first=True), "head": nn.Linear(4, 2)}
    return Run(forward, **parts), randn(B, 6, 3)


@architecture
def deep_bidirectional_lstm_sequence_first() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        out, (h, c) = m.lstm(x.transpose(0, 1))
        return out.transpose(0, 1), h.transpose(0, 1), c.transpose(0, 1)

    return Run(forward, lstm=nn.LSTM(3, 4, 2, bidirectional=True)), randn(B, B, 3)


@architecture
def lstm_with_projection_and_state() -> Case:
    def forward(m: Any, x: Tensor, h: Tensor, c: Tensor) -> Any:
        out, (h, c) = m.lstm(x, (h.transpose(0, 1), c.transpose(0, 1)))
        return out, h.transpose(0, 1), c.transpose(0, 1)

    lstm = nn.LSTM(3, 4, 2, batch_first=True, proj_size=2, bias=False)
    return Run(forward, lstm=lstm), (
        randn(B, 4, 3),
        randn(B, 2, 2),
        randn(B, 2, 4),
    )


@architecture
def gru() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        out, h = m.gru(x)
        return out, h.transpose(0, 1)

    return Run(forward, gru=nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)), randn(B, 4, 3)


@architecture
def rnn_tanh_and_relu() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        return m.two(m.one(x)[0])[0]

    parts = {
        "one": nn.RNN(3, 4, batch_first=True),
        "two": nn.RNN(4, 3, batch_first=True, nonlinearity="relu", bias=False),
    }
    return Run(forward, **parts), randn(B, 4, 3)


@architecture
def padded_sequences_packed() -> Case:
    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (h, _) = m.lstm(packed)
        return m.head(h[-1])

    parts = {"lstm": nn.LSTM(3, 4, batch_first=True), "head": nn.Linear(4, 2)}
    return Run(forward, **parts), (randn(B, 6, 3), torch.tensor([3, 6, 1, 4, 6]))


@architecture
def recurrent_cells() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 4)
        c = x.new_zeros(x.shape[0], 4)
        g = x.new_zeros(x.shape[0], 4)
        r = x.new_zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            h, c = m.lstm(x[:, t], (h, c))
            g = m.gru(h, g)
            r = m.rnn(g, r)
        return r

    parts = {"lstm": nn.LSTMCell(3, 4), "gru": nn.GRUCell(4, 4), "rnn": nn.RNNCell(4, 4)}
    return Run(forward, **parts), randn(B, 3, 3)


@architecture
def learned_first_states() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        size = x.shape[0]
        h, c = (v.expand(-1, size, -1).contiguous() for v in (m.h, m.c))
        y = m.lstm(x, (h, c))[0]
        first = m.table(torch.zeros(1, size, dtype=torch.long))
        return m.gru(y, first)[0], m.rnn(x, m.h[:1].tanh().repeat(1, size, 1))[0]

    parts = {
        "lstm": nn.LSTM(3, 4, batch_first=True, bidirectional=True),
        "gru": nn.GRU(8, 2, batch_first=True),
        "rnn": nn.RNN(3, 4, batch_first=True),
        "h": randn(2, 1, 4),
        "c": randn(2, 1, 4),
        "table": nn.Embedding(3, 2),
    }
    return Run(forward, **parts), randn(B, 5, 3)


@architecture
def decoder_that_starts_from_an_example() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        steps = m.start.expand(x.shape[0], 4, 3)  # the same inputs for every example
        h = m.state(x).view(1, -1, 4)
        return m.gru(steps, h)[0] + m.lstm(torch.ones_like(steps), (h, h.tanh()))[0]

    parts = {
        "start": randn(1, 1, 3),
        "state": nn.Linear(5, 4),
        "gru": nn.GRU(3, 4, batch_first=True),
        "lstm": nn.LSTM(3, 4, batch_first=True),
    }
    return Run(forward, **parts), randn(B, 5)


# Control of the pass


@architecture
def checkpointed_block() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.one(x)
        y = checkpoint(lambda v: m.three(torch.tanh(m.two(v))), y, use_reentrant=False)
        return m.one(torch.tanh(y))

    parts = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 6), "three": nn.Linear(6, 4)}
    return Run(forward, **parts), randn(B, 3, 4)


@architecture
def reentrant_checkpoint() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.one(x)
        return checkpoint(lambda v: m.three(torch.tanh(m.two(v))), y, use_reentrant=True)

    parts = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 6), "three": nn.Linear(6, 4)}
    return Run(forward, **parts), randn(B, 3, 4)


@architecture
def stopped_gradient_branch() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = m.one(x)
        return m.one(x) * target.sigmoid() + m.one(x).detach()

    return Run(forward, one=nn.Linear(4, 3)), randn(B, 4)


# Without a rule


@architecture
def einsum() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.einsum("bi,hij->bhj", x, m.weight).tanh().flatten(1))

    return Run(forward, weight=randn(2, 3, 4), head=nn.Linear(8, 2)), randn(B, 3)


@architecture
def losses_inside_the_model() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        mean, spread = m.both(x).chunk(2, 1)
        own = F.gaussian_nll_loss(mean, x, spread.exp(), reduction="none").sum(1)
        shared = F.gaussian_nll_loss(mean, x, m.spread.exp().expand_as(x), reduction="none").sum(1)
        share = m.share.softmax(0).expand(len(x), 4)
        return torch.stack([own, shared, F.cross_entropy(mean, share, reduction="none")], 1)

    return Run(forward, both=nn.Linear(4, 8), spread=randn(4), share=randn(4)), randn(B, 4)


@architecture
def function_of_parameters() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(F.linear(x, m.one / m.one.norm() + m.two.sigmoid()))

    parts = {"one": randn(3, 4), "two": randn(3, 4), "head": nn.Linear(3, 2)}
    return Run(forward, **parts), randn(B, 4)


@architecture
def weight_with_and_without_a_rule() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.one(x) + x @ m.one.weight.exp().t()

    return Run(forward, one=nn.Linear(4, 3)), randn(B, 4)


@architecture
def windows_of_a_parameter_that_overlap() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return F.linear(x, m.taps.unfold(0, 4, 1)) + m.taps.as_strided((3,), (1,), 2)

    return Run(forward, taps=randn(6)), randn(B, 4)


@architecture
def imaginary_part_of_a_conjugate() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return F.linear(x, torch.view_as_complex(m.pairs).conj().imag)

    return Run(forward, pairs=randn(3, 4, 2)), randn(B, 4)


@architecture
def complex_weights_from_real_parts() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        weight, signal = torch.view_as_complex(m.pairs), torch.fft.fft(x)
        one = F.linear(signal, weight, weight[:, 0]) * weight[torch.tensor([1])].sum()
        two = F.conv1d(signal.unsqueeze(1), torch.fft.fft(m.kernel)).squeeze(1)
        return torch.view_as_real(torch.cat([one, two], 1))

    return Run(forward, pairs=randn(3, 4, 2), kernel=randn(1, 1, 2)), randn(B, 4)


@architecture
def weight_normalisation() -> Case:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 2)), randn(B, 4)


class _Twice(torch.autograd.Function):
    """Twice and three times the input; no gradient flows through the second output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        twice, thrice = 2 * x, 3 * x
        ctx.mark_non_differentiable(thrice)
        return twice, thrice

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return 2 * first + 3 * second


@architecture
def output_of_a_function_that_is_not_differentiated() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        first, second = _Twice.apply(m.layer(x))
        return first * second

    return Run(forward, layer=nn.Linear(4, 3)), randn(B, 4)


class _Passed(torch.autograd.Function):
    """All inputs as they are, as torch's hooks of modules pass them."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.mark_non_differentiable(*[value for value in given if not value.requires_grad])
        return given

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


@architecture
def outputs_of_a_function_that_are_differentiated_as_its_inputs() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        first, second = _Passed.apply(m.layer(x), x)
        return first * second.sum(-1, keepdim=True)

    return Run(forward, layer=nn.Linear(4, 3)), randn(B, 4)


@architecture
def output_of_a_function_that_is_not_used() -> Case:
    return Run(lambda m, x: _Twice.apply(m.layer(x))[0], layer=nn.Linear(4, 3)), randn(B, 4)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight) ** 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        inner = gradient * 3 * F.linear(x, weight) ** 2
        return inner @ weight, inner.t() @ x


@architecture
def custom_autograd_function() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return _Cube.apply(m.one(x), m.weight)

    return Run(forward, one=nn.Linear(4, 3), weight=randn(2, 3) / 3), randn(B, 4)


class _Stretch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return gradient * weight, None


@architecture
def custom_autograd_function_without_a_gradient_of_the_weight() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return _Stretch.apply(m.one(x), m.weight) + 0 * m.weight

    return Run(forward, one=nn.Linear(4, 3), weight=randn(3)), randn(B, 4)


@architecture
def branch_on_the_data() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        rows = [m.one(r) if float(r.sum()) > 0 else m.one(-r) * 2 for r in x.split(1)]
        return torch.cat(rows)

    return Run(forward, one=nn.Linear(4, 3)), randn(B, 4)


@architecture
def examples_sorted_inside() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        order = x.sum(1).argsort()
        return m.two(torch.tanh(m.one(x)[order])[order.argsort()])

    return Run(forward, one=nn.Linear(4, 3), two=nn.Linear(3, 2)), randn(B, 4)


def one_at_a_time(model: nn.Module, inputs: Any, targets: Tensor) -> dict[str, Tensor]:
    """The oracle: nothing but autograd."""
    names = {n: p for n, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    for i in range(len(targets)):
        pick = slice(i, i + 1)
        if isinstance(inputs, dict):
            outputs = model(**{key: value[pick] for key, value in inputs.items()})
        elif isinstance(inputs, tuple):
            outputs = model(*(value[pick] for value in inputs))
        else:
            outputs = model(inputs[pick])
        model.zero_grad(set_to_none=True)
        loss(outputs, targets[pick]).sum().backward()
        for name, parameter in names.items():
            gradient = parameter.grad
            rows[name].append(torch.zeros_like(parameter) if gradient is None else gradient)
    model.zero_grad(set_to_none=True)
    return {name: torch.stack(values) for name, values in rows.items()}


def expected(rows: dict[str, Tensor], clip_norm: float) -> tuple[dict[str, Tensor], Tensor]:
    norms = torch.stack([row.reshape(B, -1).norm(dim=1) for row in rows.values()]).norm(dim=0)
    factors = (clip_norm * (1 - CHARGE) / norms).clamp(max=1)
    return {name: torch.tensordot(factors, row, 1) for name, row in rows.items()}, norms


def cast(tree: Any, dtype: torch.dtype) -> Any:
    if isinstance(tree, dict):
        return {key: cast(value, dtype) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(cast(value, dtype) for value in tree)
    return tree.to(dtype) if tree.is_floating_point() else tree


def relative(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Over the parameters as one vector, and over each one that carries any gradient."""
    total = torch.cat([wanted[name].flatten() for name in wanted]).double().norm()
    worst = 0.0
    for name in wanted:
        off = (found[name].double() - wanted[name].double()).norm()
        own = wanted[name].double().norm().clamp(min=1e-3 * total)
        worst = max(worst, float(off / own))
    return worst


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", ZOO)
def test_equals_one_example_at_a_time(name: str, dtype: torch.dtype) -> None:
    reseed(sum(map(ord, name)))
    model, inputs = ZOO[name]()
    model, inputs = initialised(model).to(dtype), cast(inputs, dtype)
    targets = randn(B, dtype=dtype)
    before = copy.deepcopy(model.state_dict())
    rows = one_at_a_time(model, inputs, targets)
    norms = torch.stack([row.reshape(B, -1).norm(dim=1) for row in rows.values()]).norm(dim=0)
    clip_norm = float(norms.median())
    wanted, norms = expected(rows, clip_norm)
    tolerance = 1e-6 if dtype == torch.float64 else 5e-4
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradientsWarning)
        for _ in range(2):
            gradients, got = clipped_sum(model, loss, inputs, targets, clip_norm)
            assert set(gradients) == set(wanted)
            torch.testing.assert_close(got, norms.to(got), rtol=tolerance, atol=0)
            assert relative(gradients, wanted) <= tolerance
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(parameter.grad is None for parameter in model.parameters())


def _scaled(m: Any, x: Tensor) -> Tensor:
    own = 2 * m.shift
    y = x + own
    own.mul_(3)
    return y * (x + own)


def _scaled_together(m: Any, x: Tensor) -> Tensor:
    own = 2 * m.shift
    y = x + own
    torch._foreach_mul_([own], 3)
    return y * (x + own)


@pytest.mark.parametrize("forward", [_scaled, _scaled_together])
def test_value_of_parameters_that_is_written_to_between_its_uses(forward: Any) -> None:
    reseed(1)
    model, x, y = Run(forward, shift=randn(4)).double(), randn(B, 4).double(), randn(B).double()
    wanted, norms = expected(one_at_a_time(model, x, y), 1.0)
    with pytest.warns(SlowGradientsWarning, match="written to after"):
        gradients, got = clipped_sum(model, loss, x, y, 1.0)
    torch.testing.assert_close(got, norms.to(got), rtol=1e-6, atol=0)
    assert relative(gradients, wanted) <= 1e-6


def test_looks_bags_of_all_examples_up_in_one_call() -> None:
    model, inputs = ZOO["embedding_bags"]()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        clipped_sum(model, lambda outputs, y: outputs.sum(-1), inputs, torch.zeros(B), 1.0)
    calls = [event for event in profiler.events() if event.name == "aten::embedding_bag"]
    assert len(calls) == 3

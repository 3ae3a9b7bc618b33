"""torch's functions, one by one, with parameters in every place: float64 against one at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.oracle import compare, spread

from drawn import rand, randn, reseed

B, C, L = 3, 4, 6
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


class Using(nn.Module):
    """A function of an input (B, 4, 6), with parameters and modules behind it."""

    def __init__(self, function: Callable[..., Any], parts: tuple[Any, ...]) -> None:
        super().__init__()
        self.function = function
        self.parts: list[Any] = []
        for number, part in enumerate(parts):
            made = part if isinstance(part, nn.Module) else nn.Parameter(0.5 * randn(part))
            setattr(self, f"part{number}", made)

    def forward(self, x: Tensor) -> Any:
        held = [
            getattr(self, name) for name in (f"part{i}" for i in range(9)) if hasattr(self, name)
        ]
        return self.function(x, *held)


def using(name: str, function: Callable[..., Any], *parts: Any) -> None:
    """Add a function of (x, *parameters); a part is a shape or a function that makes a module."""
    assert name not in FUNCTIONS
    FUNCTIONS[name] = (function, parts)


def whole(x: Tensor) -> Tensor:
    return x.abs().long().clamp(max=4)


# Products
using("linear", F.linear, (5, L), (5,))
using("linear without bias", F.linear, (5, L))
using("linear of a vector", lambda x, w: F.linear(x[:, 0], w), (5, L))
using("linear weight from the example", lambda x, b: F.linear(x, x[0, :2], b), (2,))
using("linear bias broadcast", lambda x, w, b: F.linear(x, w) + b, (5, L), (1, C, 1))
using("linear with a row", lambda x, w: F.linear(x, w), (L,))
using("linear twice", lambda x, w: F.linear(torch.tanh(F.linear(x, w)), w), (L, L))
using("linear and transposed", lambda x, w: F.linear(F.linear(x, w), w.t()), (5, L))
using("linear and a row of it", lambda x, w: F.linear(x, w)[..., :1] * w[0], (5, L))
using("linear on parameters only", lambda x, w, v: x @ F.linear(v, w).t(), (L, 5), (3, 5))
using("matmul right", lambda x, w: x @ w, (L, 5))
using("matmul left", lambda x, w: w @ x, (5, C))
using("matmul vector right", lambda x, w: x @ w, (L,))
using("matmul vector left", lambda x, w: w @ x, (C,))
using("matmul batched parameter", lambda x, w: x.unsqueeze(1) @ w, (2, L, 5))
using("matmul example vector", lambda x, w: x[0, 0] @ w, (L, 5))
using("matmul in place of name", lambda x, w: torch.matmul(x, w.T.contiguous().T), (L, 5))
using("mm", lambda x, w: torch.mm(x[0], w), (L, 5))
using("mv", lambda x, w: torch.mv(x[0], w), (L,))
using("mv of the parameter", lambda x, w: torch.mv(w, x[0, 0]), (5, L))
using("dot", lambda x, w: torch.dot(x[0, 0], w).reshape(1, 1), (L,))
using("outer", lambda x, w: torch.outer(x[0, 0], w).unsqueeze(0), (5,))
using("bmm", lambda x, w: torch.bmm(x, w.expand(len(x), L, 5)), (1, L, 5))
using("baddbmm", lambda x, w, b: torch.baddbmm(b, x, w.expand(len(x), L, 5)), (1, L, 5), (5,))
using("addmm", lambda x, b, w: torch.addmm(b, x[0], w, beta=0.5, alpha=2.0), (5,), (L, 5))
using("addmv", lambda x, b, w: torch.addmv(b, x[0], w), (C,), (L,))
using("addr", lambda x, m, w: torch.addr(m, x[0, 0], w).unsqueeze(0), (L, 5), (5,))
using("einsum", lambda x, w: torch.einsum("bcl,lo,co->bo", x, w[0], w[1, :C]), (2, L, 5))
using("einsum heads", lambda x, w: torch.einsum("bcl,hlk->bhck", x, w), (2, L, 3))
using("tensordot", lambda x, w: torch.tensordot(x, w, dims=([1, 2], [0, 1])), (C, L, 5))
using("kron", lambda x, w: torch.kron(x[0], w).unsqueeze(0), (2, 2))
using("bilinear", lambda x, w, b: F.bilinear(x, x.flip(2), w, b), (3, L, L), (3,))
using("chain_matmul", lambda x, v, w: torch.linalg.multi_dot((x[0], v, w)), (L, 5), (5, 2))
using("cdist", lambda x, w: torch.cdist(x, w.expand(len(x), 5, L)), (1, 5, L))
using("cosine similarity", lambda x, w: F.cosine_similarity(x, w, dim=2), (L,))
using("pairwise distance", lambda x, w: F.pairwise_distance(x[0], w).unsqueeze(0), (C, L))
using("product of two parameters", lambda x, v, w: x * v * w, (C, 1), (L,))
using("quotient", lambda x, w: x / (1 + w.square()), (C, 1))
using("power", lambda x, w: (1 + x.square()) ** w, (1,))
using("scalar", lambda x, w: x * w, ())
using("addcmul", lambda x, v, w: torch.addcmul(x, v, w, value=2.0), (L,), (C, 1))
using("lerp", lambda x, w: torch.lerp(x, x.flip(1), w), (L,))
using("where", lambda x, w: torch.where(x > 0, x, w), (C, 1))
using("maximum", lambda x, w: torch.maximum(x, w), (L,))
using("concatenated parameter", lambda x, w: torch.cat([w.expand(len(x), 1, L), x], 1), (1, 1, L))
using("stacked parameter", lambda x, w: torch.stack([x, w.expand_as(x)], 1), (L,))
using("indexed parameter", lambda x, w: x * w[torch.tensor([1, 0, 2, 1])], (3, L))
using("gathered by the example", lambda x, w: w[whole(x)], (5, 3))
using("taken by the example", lambda x, w: torch.take(w, whole(x)), (5, 3))
using("gather", lambda x, w: torch.gather(w.expand(len(x), C, L), 2, whole(x)), (1, C, L))
using("index select", lambda x, w: x.index_select(2, torch.tensor([0, 2])) * w, (2,))
using("written into zeros", lambda x, w: torch.zeros(len(x), C, L).copy_(x * w), (L,))
using("masked fill", lambda x, w: (x * w).masked_fill(x > 0, 0.5), (L,))
using("masked fill by a parameter", lambda x, w: x.masked_fill(x > 0, w), ())
using("scatter", lambda x, w: (x * w).scatter(2, whole(x), x), (L,))
using("scatter add", lambda x, w: torch.zeros(len(x), C, L).scatter_add(2, whole(x), x * w), (L,))
using("index add", lambda x, w: x.index_add(1, torch.tensor([0, 2]), (x * w)[:, :2]), (L,))
using("masked scatter", lambda x, w: x.masked_scatter(x > 0, x * w), (L,))
using("put", lambda x, w: (x * w).index_put((torch.tensor([0]),), x[:1]), (L,))
using("softmax temperature", lambda x, w: torch.softmax(x * w, -1), ())
using("trained threshold", lambda x, w: torch.sigmoid((x - w) * 5) * x, (C, 1))
using("straight through", lambda x, w: x * (w + (w.round() - w).detach()), (L,))
using("detached parameter", lambda x, w: x * w.detach() + x * w[:1], (L,))
using("decay in the output", lambda x, w: x * w + w.square().sum(), (L,))
using("exp of a parameter", lambda x, w: torch.cumsum(x * -w.exp(), 1), (L,))
using("normalised weight", lambda x, w: F.linear(x, F.normalize(w, dim=1)), (5, L))
using("softmax of a parameter", lambda x, w: F.linear(x, w.softmax(1)), (5, L))
using("orthogonal by exponential", lambda x, w: x @ torch.matrix_exp(w - w.t()), (L, L))
using("inverse of a parameter", lambda x, w: x @ torch.inverse(w + 5 * torch.eye(L)), (L, L))
using("solve with a parameter", lambda x, w: torch.linalg.solve(w + 5 * torch.eye(C), x), (C, C))
using("solve with the example",
      lambda x, w: torch.linalg.solve(x @ x.mT + 5 * torch.eye(C), w), (C, 2))  # fmt: skip
using("determinant", lambda x, w: torch.linalg.slogdet(x @ x.mT + w.square().diag())[1], (C,))
using("cholesky", lambda x, w: torch.linalg.cholesky(x @ x.mT + (1 + w.square()).diag()), (C,))
using("norm of the parameter", lambda x, w: x * w / w.norm(dim=1, keepdim=True), (C, L))
using("convolution by fft",
      lambda x, w: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(w)), (L,))  # fmt: skip
using("complex in between", lambda x, w: (torch.complex(x, x * w) * 1j).abs(), (L,))
using("short time fourier",
      lambda x, w: torch.stft((x * w)[:, 0], 4, 2, window=torch.ones(4), return_complex=True).abs(),
      (L,))  # fmt: skip
using("grid sample", lambda x, w: F.grid_sample(
    x.unsqueeze(1), F.affine_grid(w.expand(len(x), 2, 3), (len(x), 1, 3, 3), align_corners=False),
    align_corners=False), (1, 2, 3))  # fmt: skip
using("unfold and fold", lambda x, w: F.fold(
    F.unfold(x.unsqueeze(1), 2) * w, (C, L), 2), (15,))  # fmt: skip
using("max pool", lambda x, w: F.max_pool1d(x * w, 2), (L,))
using("max unpool", lambda x, w: F.max_unpool1d(*F.max_pool1d(x * w, 2, return_indices=True), 2),
      (L,))  # fmt: skip
using("adaptive pool", lambda x, w: F.adaptive_avg_pool1d(x * w, 4), (L,))
using("power pool", lambda x, w: F.lp_pool1d(x * w, 2, 2), (L,))
using("interpolate", lambda x, w: F.interpolate(x * w, 9, mode="linear"), (L,))
using("pixel shuffle", lambda x, w: F.pixel_shuffle(x.unsqueeze(3) * w, 2), (C, L, 1))
using("cumulative", lambda x, w: torch.logcumsumexp(x * w, 1) + torch.cumprod(x * w, 2), (L,))
using("sorted", lambda x, w: (x * w).sort(2).values + (x * w).topk(2, 2).values.sum(2, True), (L,))
using("variance and median", lambda x, w: (x * w).var(2) + (x * w).median(2).values, (L,))
using("padding", lambda x, w: F.pad(x * w, (1, 2), mode="reflect"), (L,))
using("rolled and flipped", lambda x, w: (x * w).roll(1, 2) + (x * w).flip(1), (L,))
using("in place on the product", lambda x, w: (x @ w).add_(1).mul_(2).relu_(), (L, 5))
using("in place on a slice", lambda x, w: _slices(x @ w), (L, 5))


def _slices(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, 0] *= 2
    y[:, 1:3] += y[:, :1]
    return y


# Convolutions
using("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), (5, C, 3), (5,))
using("conv1d same", lambda x, w: F.conv1d(x, w, padding="same", dilation=2), (5, C, 3))
using("conv1d grouped", lambda x, w: F.conv1d(x, w, stride=2, groups=2), (6, 2, 2))
using("conv1d depthwise", lambda x, w: F.conv1d(x, w, groups=4), (8, 1, 3))
using("conv1d one wide", lambda x, w, b: F.conv1d(x, w, b), (5, C, 1), (5,))
using("conv1d without a batch", lambda x, w: F.conv1d(x[0], w).unsqueeze(0), (5, C, 3))
using("conv1d weight from the example", lambda x, b: F.conv1d(x, x[:1, :, :3], b), (1,))
using(
    "conv2d", lambda x, w: F.conv2d(x.unsqueeze(1), w, padding=(1, 0), stride=(1, 2)), (2, 1, 3, 2)
)
using("conv2d dilated", lambda x, w: F.conv2d(x.unsqueeze(1), w, dilation=(1, 2)), (2, 1, 2, 2))
using("conv3d", lambda x, w: F.conv3d(x.view(-1, 1, 2, 2, 6), w), (2, 1, 2, 1, 3))
using("conv twice", lambda x, w: F.conv1d(F.conv1d(x, w, padding=1), w), (C, C, 3))
using("conv standardised", lambda x, w: F.conv1d(x, w - w.mean((1, 2), keepdim=True)), (5, C, 3))
using("transposed conv1d", lambda x, w, b: F.conv_transpose1d(
    x, w, b, stride=2, padding=1, output_padding=1), (C, 5, 3), (5,))  # fmt: skip
using("transposed conv2d grouped", lambda x, w: F.conv_transpose2d(
    x.unsqueeze(3), w, stride=(2, 1), groups=2), (C, 3, 2, 1))  # fmt: skip
using(
    "transposed conv3d", lambda x, w: F.conv_transpose3d(x.view(-1, 1, 2, 2, 6), w), (1, 2, 2, 1, 3)
)
using("module conv circular", lambda x, m: m(x), lambda: nn.Conv1d(C, 5, 3, padding=1,
      padding_mode="circular"))  # fmt: skip

# Look-ups
using("embedding", lambda x, w: F.embedding(whole(x), w), (5, 3))
using("embedding padded", lambda x, w: F.embedding(whole(x), w, padding_idx=0), (5, 3))
using("embedding shared index", lambda x, w: x + F.embedding(torch.arange(C), w), (9, L))
using("embedding and head", lambda x, w: F.embedding(whole(x), w) @ w.t(), (5, 3))
using("embedding of parameters", lambda x, w: F.embedding(whole(x), w.exp()), (5, 3))
using("bag mean", lambda x, w: F.embedding_bag(whole(x).flatten(1), w, mode="mean"), (5, 3))
using("bag mean padded at the end", lambda x, w: F.embedding_bag(
    whole(x).flatten(1), w, mode="mean", padding_idx=-1), (5, 3))  # fmt: skip
using("bag sum padded", lambda x, w: F.embedding_bag(
    whole(x).flatten(1), w, mode="sum", padding_idx=1), (5, 3))  # fmt: skip
using("bag max", lambda x, w: F.embedding_bag(whole(x).flatten(1), w, mode="max"), (5, 3))
using("bag weighted", lambda x, w: F.embedding_bag(
    whole(x).flatten(1), w, mode="sum", per_sample_weights=x.flatten(1)), (5, 3))  # fmt: skip
using("one hot", lambda x, w: F.one_hot(whole(x), 5).double() @ w, (5, 3))

# Norms and activations
using("layer norm", lambda x, w, b: F.layer_norm(x, (L,), w, b), (L,), (L,))
using("layer norm weight", lambda x, w: F.layer_norm(x, (C, L), w), (C, L))
using("layer norm bias", lambda x, b: F.layer_norm(x, (L,), None, b), (L,))
using("rms norm", lambda x, w: F.rms_norm(x, (L,), w), (L,))
using("group norm", lambda x, w, b: F.group_norm(x, 2, w, b), (C,), (C,))
using("instance norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (C,), (C,))
using("batch norm in evaluation", lambda x, m: m(x), lambda: nn.BatchNorm1d(C).eval())
using("local response", lambda x, w: F.local_response_norm(x * w, 2), (L,))
using("prelu one", F.prelu, (1,))
using("prelu each", F.prelu, (C,))
using("gated", lambda x, w: F.glu(x @ w), (L, 4))
using("gelu tanh", lambda x, w: F.gelu(x @ w, approximate="tanh"), (L, 4))

# Recurrent layers
using("rnn", lambda x, m: m(x)[0], lambda: nn.RNN(L, 3, batch_first=True))
using("rnn relu", lambda x, m: m(x)[0], lambda: nn.RNN(L, 3, nonlinearity="relu", batch_first=True))
using("gru", lambda x, m: m(x)[0], lambda: nn.GRU(L, 3, 2, batch_first=True, bidirectional=True))
using("gru without bias", lambda x, m: m(x)[1], lambda: nn.GRU(L, 3, bias=False, batch_first=True))
using("lstm", lambda x, m: m(x)[0], lambda: nn.LSTM(L, 3, 2, batch_first=True, bidirectional=True))
using("lstm time in front", lambda x, m: m(x.transpose(0, 1))[0].transpose(0, 1),
      lambda: nn.LSTM(L, 3))  # fmt: skip
using("lstm without a batch", lambda x, m: m(x[0])[0].unsqueeze(0), lambda: nn.LSTM(L, 3))
using("lstm projected", lambda x, m: m(x)[0], lambda: nn.LSTM(L, 5, proj_size=2, batch_first=True))
using("lstm states", lambda x, m: torch.cat(m(x)[1], 2).transpose(0, 1),
      lambda: nn.LSTM(L, 3, 2, batch_first=True))  # fmt: skip
using("lstm trained start",
      lambda x, m, h, c: m(x, tuple(s.expand(1, len(x), 3).contiguous() for s in (h, c)))[0],
      lambda: nn.LSTM(L, 3, batch_first=True), (1, 1, 3), (1, 1, 3))  # fmt: skip
using("gru start from the example", lambda x, m: m(x, x[:, :1, :3].transpose(0, 1).contiguous())[0],
      lambda: nn.GRU(L, 3, batch_first=True))  # fmt: skip
using("lstm cell", lambda x, m: m(x[:, 1], m(x[:, 0]))[0], lambda: nn.LSTMCell(L, 3))
using("gru cell", lambda x, m: m(x[:, 1], m(x[:, 0])), lambda: nn.GRUCell(L, 3))
using("rnn cell", lambda x, m: m(x[:, 1], m(x[:, 0])), lambda: nn.RNNCell(L, 3))


def _packed(x: Tensor, layer: nn.Module) -> Tensor:
    lengths = (x[:, 0, 0] > 0).long().cpu() + 2
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
    out, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], True, total_length=C)
    return out


using("lstm packed", _packed, lambda: nn.LSTM(L, 3, batch_first=True))
using("gru packed", _packed, lambda: nn.GRU(L, 3, batch_first=True))

# Attention


def attention(name: str, call: Callable[..., Any] | None = None, **how: Any) -> None:
    using(f"attention {name}", call or (lambda x, m: m(x, x, x)[0]),
          lambda: nn.MultiheadAttention(L, 2, **{"batch_first": True, **how}))  # fmt: skip


attention("plain")
attention("without weights", lambda x, m: m(x, x, x, need_weights=False)[0])
attention("time in front", batch_first=False)
attention("across", lambda x, m: m(x, x.flip(1), x * 2)[0])
attention("with its weights", lambda x, m: torch.cat([t.flatten(1) for t in m(x, x, x)], 1))
attention(
    "padded",
    lambda x, m: m(x, x, x, key_padding_mask=torch.cat([x[:, :3, 0] > 0, x[:, 3:, 0] > 9], 1))[0],
)
attention(
    "causal",
    lambda x, m: m(
        x, x, x, is_causal=True, attn_mask=torch.triu(torch.full((C, C), float("-inf")), 1)
    )[0],
)
attention("with zero", add_zero_attn=True)
attention("with bias keys", add_bias_kv=True)
attention("other widths", lambda x, m: m(x, x[..., :3], x[..., :2])[0], kdim=3, vdim=2)
using("attention trained mask", lambda x, w: F.scaled_dot_product_attention(x, x, x, w), (C, C))
using(
    "attention trained query",
    lambda x, w: F.scaled_dot_product_attention(w.expand(len(x), 2, L), x, x),
    (1, 2, L),
)
using(
    "attention heads",
    lambda x, w: F.scaled_dot_product_attention(
        *((x @ w).view(len(x), C, 3, 2, 3).permute(2, 0, 3, 1, 4)), is_causal=True
    ),
    (L, 18),
)
using(
    "attention grouped heads",
    lambda x, w: F.scaled_dot_product_attention(
        (x @ w).view(len(x), C, 4, 2).transpose(1, 2),
        *(2 * [(x @ w)[..., :4].view(len(x), C, 2, 2).transpose(1, 2)]),
        enable_gqa=True,
    ),
    (L, 8),
)
using(
    "attention scaled", lambda x, w: F.scaled_dot_product_attention(x @ w, x, x, scale=0.3), (L, L)
)
using(
    "attention masked by the example",
    lambda x, w: F.scaled_dot_product_attention(
        x @ w, x, x, attn_mask=(x[:, :1, :C] > -1) | torch.eye(C, dtype=torch.bool)
    ),
    (L, L),
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    reseed(0)
    function, parts = FUNCTIONS[name]
    model = Using(function, tuple(p() if callable(p) else p for p in parts)).double()
    x, y = randn(B, C, L, dtype=torch.float64), rand(B, dtype=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(model, spread, x, y, 1e-7)
    finally:
        torch.set_default_dtype(torch.float32)


def shares(t: Tensor, o: Tensor) -> Tensor:
    return F.one_hot(t, 6).to(o)


def signs(t: Tensor, o: Tensor) -> Tensor:
    return (t % 2).to(o) * 2 - 1


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": lambda o, t: F.cross_entropy(o, t, reduction="none"),
    "cross entropy smoothed": lambda o, t: F.cross_entropy(
        o, t, reduction="none", label_smoothing=0.2
    ),
    "cross entropy weighted": lambda o, t: F.cross_entropy(
        o, t, torch.arange(1.0, 7.0, dtype=o.dtype), reduction="none"
    ),
    "cross entropy ignoring": lambda o, t: F.cross_entropy(o, t, reduction="none", ignore_index=0),
    "cross entropy of shares": lambda o, t: F.cross_entropy(
        o, o.detach().softmax(1).flip(1), reduction="none"),
    "cross entropy of shares at places": lambda o, t: torch.stack([
        F.cross_entropy(one, one.detach().softmax(1)) for one in o.view(-1, 1, 3, 2)]),
    "nll": lambda o, t: F.nll_loss(o.log_softmax(1), t, reduction="none"),
    "kl": lambda o, t: F.kl_div(o.log_softmax(1), shares(t, o), reduction="none").sum(1),
    "bce": lambda o, t: F.binary_cross_entropy(o.sigmoid(), shares(t, o), reduction="none").mean(1),
    "bce logits": lambda o, t: F.binary_cross_entropy_with_logits(
        o, shares(t, o), pos_weight=torch.arange(1.0, 7.0).to(o), reduction="none").sum(1),
    "mse": lambda o, t: F.mse_loss(o[:, 0], t.to(o), reduction="none"),
    "huber": lambda o, t: F.huber_loss(o[:, 0], t.to(o), reduction="none"),
    "smooth": lambda o, t: F.smooth_l1_loss(o[:, 0], t.to(o), reduction="none"),
    "margin": lambda o, t: F.multi_margin_loss(o, t, reduction="none"),
    "multi label": lambda o, t: F.multilabel_margin_loss(o, F.one_hot(t, 6), reduction="none"),
    "soft margin": lambda o, t: F.soft_margin_loss(
        o, shares(t, o) * 2 - 1, reduction="none").sum(1),
    "hinge": lambda o, t: F.hinge_embedding_loss(o[:, 0], signs(t, o), reduction="none"),
    "triplet": lambda o, t: F.triplet_margin_loss(o[:, :2], o[:, 2:4], o[:, 4:], reduction="none"),
    "cosine": lambda o, t: F.cosine_embedding_loss(
        o[:, :3], o[:, 3:], signs(t, o), reduction="none"),
    "ranking": lambda o, t: F.margin_ranking_loss(o[:, 0], o[:, 1], signs(t, o), reduction="none"),
    "gaussian": lambda o, t: F.gaussian_nll_loss(o[:, 0], t.to(o), o[:, 1].exp(), reduction="none"),
    "poisson": lambda o, t: F.poisson_nll_loss(o[:, 0], t.to(o), reduction="none"),
    "ctc": lambda o, t: F.ctc_loss(
        o.view(len(o), 3, 2).log_softmax(2).transpose(0, 1),
        torch.ones(len(o), 1, dtype=torch.long),
        torch.full((len(o),), 3), torch.full((len(o),), 1), reduction="none"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    reseed(0)
    model = nn.Sequential(nn.Linear(L, 8), nn.Tanh(), nn.Linear(8, 6)).double()
    x, y = randn(B, L, dtype=torch.float64), torch.tensor([0, 3, 5])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(model, LOSSES[name], x, y, 1e-7)

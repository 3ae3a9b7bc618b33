"""Layers, losses and types: in blocks, a record has the same bits in any batch and at any place.

Every value on the way forward, every gradient on the way back, norms and factors are compared. The
slow test runs all of it under every set of instructions that this machine has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from forethought.gradients import SlowGradientsWarning
from forethought.gradients.batches import Blocks, bits, planned
from forethought.gradients.clipped import numbers_behind

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{
        f"linear {width}, {outputs}": (lambda w=width, o=outputs: nn.Linear(w, o), (width,))
        for width, outputs in (
            (512, 1), (512, 10), (784, 32), (123, 1), (123, 2), (33, 7), (7, 5), (3, 1), (64, 64),
            (400, 120), (100, 3), (17, 17),
        )
    },
    **{
        kind.__name__: (
            lambda kind=kind: nn.Sequential(nn.Linear(33, 9), kind(), nn.Linear(9, 3)), (33,)
        )
        for kind in (
            nn.Sigmoid, nn.SiLU, nn.GELU, nn.Softplus, nn.ELU, nn.Mish, nn.Tanh, nn.ReLU, nn.SELU,
            nn.CELU, nn.Softsign, nn.Hardswish, nn.LogSigmoid, nn.LeakyReLU, nn.PReLU,
        )
    },
    "tanh-GELU": (lambda: nn.Sequential(nn.Linear(5, 3), nn.GELU("tanh")), (5,)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(9, 11), nn.LayerNorm(11)), (9,)),
    "group norm": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4)), (2, 9)),
    "RMS norm": (lambda: nn.Sequential(nn.Linear(9, 11), nn.RMSNorm(11)), (9,)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3), (3, 11)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(1, 6, 5), nn.MaxPool2d(2)), (1, 14, 14)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 8, 3, groups=2, stride=2), (4, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 5, 5)),
    "flat": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 6)), (3, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), (5, 8)),
    "dropout": (lambda: nn.Sequential(nn.Linear(9, 5), nn.Dropout(0.0)), (9,)),
}  # fmt: skip
LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "absolute": lambda o, t: (o - t).abs().sum(1),
    "squares": lambda o, t: (o - t).square().sum(1),
    "binary": lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none").sum(1),
    "power": lambda o, t: (o - t).abs().add(0.1).pow(1.7).sum(1),
    "soft": lambda o, t: torch.logsumexp(o, 1) - (o * t).sum(1),
}
TYPES = (torch.float32, torch.float64, torch.bfloat16)
SIZES = (planned(40, 6.3), planned(1000, 30, 20), Blocks((4,)))


def differing(layer: str, loss: str, dtype: torch.dtype, used: Blocks) -> int:
    """How many of the numbers of a record are others in another batch."""
    make, shape = LAYERS[layer]
    torch.manual_seed(1)
    model = make().to(dtype)
    draws = np.random.default_rng(len(layer))
    x = torch.from_numpy(draws.standard_normal((61, *shape))).to(dtype)
    with torch.no_grad():
        wide = model(x[:1]).flatten(1).shape[1]
    t = torch.from_numpy(draws.random((61, wide))).to(dtype)

    def flat(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return LOSSES[loss](outputs.flatten(1), targets)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowGradientsWarning)  # one at a time is sound, too
        whole = numbers_behind(model, flat, x, t, used)
        found = 0
        for count in (1, 18, 35, 60):
            order = torch.from_numpy(draws.permutation(61)[:count].copy())
            for one, other in zip(
                numbers_behind(model, flat, x[order], t[order], used), whole, strict=True
            ):
                found += int((bits(one) != bits(other[order])).sum())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["Sigmoid", "ELU", "SELU", "CELU"])
def test_no_bit_differs_in_short_blocks(layer: str) -> None:
    assert differing(layer, "absolute", torch.float64, SIZES[2]) == 0
    assert differing(layer, "absolute", torch.float32, SIZES[1]) == 0


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layer", ["linear 512, 1", "linear 33, 7", "SiLU", "conv2d", "attention"])
def test_no_bit_differs(layer: str, dtype: torch.dtype) -> None:
    assert differing(layer, "absolute", dtype, SIZES[0]) == 0


# Where a short block ends in the scalar tail of a vectorised loop.
ELEMENTWISE = [name for name in LAYERS if isinstance(getattr(nn, name, None), type)] + ["tanh-GELU"]
# What a loss does depends on how many outputs there are, not on the layer before them.
WIDTHS = [f"linear {shape}" for shape in ("512, 1", "123, 2", "100, 3", "33, 7", "784, 32")]
INSTRUCTIONS = ("default", "avx2", "native")


def sweep(instructions: str) -> int:
    """All that is tried under these instructions, which this process may use.

    Every layer in every type: two types, which take turns, in sizes planned for few records, the
    third in those for many. The other sizes and losses are in one type of each layer: under the
    three sets together each is tried once.
    """
    own = INSTRUCTIONS.index(instructions)
    cases = []
    for at, layer in enumerate(LAYERS):
        dtype = TYPES[(at + own) % len(TYPES)]
        cases += [(layer, "absolute", other, SIZES[other is dtype]) for other in TYPES]
        if layer in ELEMENTWISE:
            cases.append((layer, "absolute", dtype, SIZES[2]))
        if layer in WIDTHS:
            cases += [(layer, loss, dtype, SIZES[0]) for loss in LOSSES if loss != "absolute"]
    found = {case: differing(*case) for case in cases}
    bad = {case: count for case, count in found.items() if count}
    print(len(found), "cases,", len(bad), "with differing bits:", bad)
    return len(bad)


@pytest.mark.slow
@pytest.mark.parametrize(
    "instructions",
    [*(pytest.param(each, marks=pytest.mark.repeated) for each in INSTRUCTIONS[:2]), "native"],
)
def test_no_bit_differs_anywhere(instructions: str) -> None:
    own = {"default": ("default", "SSE41"), "avx2": ("avx2", "AVX2")}.get(instructions)
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
    environment = {**os.environ, **(dict(zip(names, own, strict=True)) if own else {})}
    command = [sys.executable, __file__, instructions]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(bool(sweep(sys.argv[1])))

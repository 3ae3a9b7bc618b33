"""What a way of taking norms costs: floating-point operations and bytes, turned into seconds.

The rates are round figures of a machine (two cores with AVX-512; a data-centre GPU), not of a run:
they only have to put the ways in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of work on one kind of device."""

    product: float  # a floating-point operation in a batched matrix product
    move: float  # a byte read or written by an elementwise pass
    rows: float  # a byte of per-example gradient written by a grouped convolution


CPU = Rates(product=1 / 120e9, move=1 / 20e9, rows=1 / 1.8e9)
CUDA = Rates(product=1 / 10e12, move=1 / 1.0e12, rows=1 / 60e9)


def rates(device: torch.device) -> Rates:
    """The rates of a device."""
    return CUDA if device.type == "cuda" else CPU

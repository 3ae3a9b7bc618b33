"""Losses of :mod:`forethought.convex.problems` and their derivatives, row by row.

A function of outputs z, shape (N, k), and targets, shape (N,): losses are (N,), or (N, k) where
every column is a model of its own (all but softmax); derivatives have the shape of z. Labels are 0
and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.convex.problems import (
    HuberRegression,
    LinearRegression,
    LogisticRegression,
    Problem,
    SmoothedHinge,
    SoftmaxRegression,
)


class LossAndSlope(NamedTuple):
    """(outputs, targets) → losses, and → the derivative of each loss by its outputs."""

    loss: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _column(targets: Tensor, outputs: Tensor) -> Tensor:
    return targets.to(outputs.dtype).unsqueeze(1)


def _signs(targets: Tensor, outputs: Tensor) -> Tensor:
    return _column(targets, outputs).mul_(2).sub_(1)


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(-_signs(targets, outputs) * outputs)


def _logistic_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    # p − y loses nothing that matters: the bound on a gradient is relative to the row's norm.
    return torch.sigmoid(outputs).sub_(_column(targets, outputs))


def _softmax(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _softmax_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    found = torch.softmax(outputs, 1)
    return found.scatter_add_(1, targets.unsqueeze(1), found.new_full((len(found), 1), -1.0))


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - _column(targets, outputs)).square_().mul_(0.5)


def _squared_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs - _column(targets, outputs)


def _huber(threshold: float, outputs: Tensor, targets: Tensor) -> Tensor:
    far = (outputs - _column(targets, outputs)).abs_()
    near = far.clamp(max=threshold)
    return near * (far - near / 2)


def _huber_slope(threshold: float, outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - _column(targets, outputs)).clamp_(-threshold, threshold)


def _hinge(smoothing: float, outputs: Tensor, targets: Tensor) -> Tensor:
    short = (1 - _signs(targets, outputs) * outputs).clamp_(min=0)
    near = short.clamp(max=smoothing)
    return near / smoothing * (short - near / 2)


def _hinge_slope(smoothing: float, outputs: Tensor, targets: Tensor) -> Tensor:
    signs = _signs(targets, outputs)
    return -signs * ((1 - signs * outputs) / smoothing).clamp_(0, 1)


def loss_and_slope(problem: Problem) -> LossAndSlope:
    """The loss of a problem and its derivative.

    Raises:
        ValueError: a loss of one's own, which must be given.
    """
    match problem:
        case LogisticRegression():
            return LossAndSlope(_logistic, _logistic_slope)
        case SoftmaxRegression():
            return LossAndSlope(_softmax, _softmax_slope)
        case LinearRegression():
            return LossAndSlope(_squared, _squared_slope)
        case HuberRegression(threshold=threshold):
            return LossAndSlope(partial(_huber, threshold), partial(_huber_slope, threshold))
        case SmoothedHinge(smoothing=smoothing):
            return LossAndSlope(partial(_hinge, smoothing), partial(_hinge_slope, smoothing))
        case _:
            raise ValueError(
                f"the plan is for a loss of one's own, {getattr(problem, 'name', problem)!r}: give "
                "slope=, its derivative by the output, row by row"
            )

"""The library's own deep networks, an eighth as wide, against one backward pass an example."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from zoo.oracle import (
    Case,
    assert_isolated,
    classify,
    collected,
    compare,
    fresh,
    in_double,
    perturb,
)

from drawn import randint, randn
from forethought.models import build


def images(name: str, **options: Any) -> Case:
    model = build(name, inputs=(3, 16, 16), classes=5, seed=0, **options)

    def batch(examples: int, longer: bool) -> tuple[Any, Any]:
        return randn(examples, 3, 16, 16), randint(0, 5, (examples,))

    return Case(model, batch, classify, "")


def sequences(**options: Any) -> Case:
    model = build("lstm-32", inputs=(7, 6), classes=5, seed=0, cells=8, **options)

    def batch(examples: int, longer: bool) -> tuple[Any, Any]:
        shape = (examples, 7) if options else (examples,)
        return randn(examples, 7, 6), randint(0, 5, shape)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        return each.flatten(1).sum(1) if options else each

    return Case(model, batch, loss, "")


WIDE = (
    *("alexnet", "efficientnet-b0", "googlenet", "mobilenet", "mobilenet-v2", "resnet-18"),
    *("resnext-29", "senet-18", "shufflenet-v2", "vgg-19", "wrn-16-4", "wrn-40-4"),
)
CASES = {name: partial(images, name, width=0.125) for name in WIDE} | {
    "gabor-cnn": partial(images, "gabor-cnn"),
    "shufflenet": partial(images, "shufflenet"),
    "shufflenet of 3 groups": partial(images, "shufflenet", groups=3),
    "lstm": sequences,
    "lstm of every frame": partial(sequences, every_frame=True),
}


@pytest.mark.parametrize("make", collected(CASES, ("resnet-18", "lstm")))
def test_clipped_sums_are_those_of_one_example_at_a_time(make):
    # In float64: a maximum among nearly equal pixels goes elsewhere by float32's last digit.
    case = fresh(make)
    case.model.double()
    single, case.rtol = case.batch, 1e-7
    case.batch = lambda examples, longer: in_double(single(examples, longer))
    compare(case.model, case.loss, *case.batch(3, False), case.rtol)
    perturb(case.model)
    inputs, targets = case.batch(3, False)
    assert_isolated(case.model, case.loss, inputs, targets, rtol=case.rtol)

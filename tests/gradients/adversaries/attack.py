"""What the attacks share: how they are made and what must come of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.oracle import assert_isolated, compare

from drawn import randint, randn, reseed

B, D = 6, 8

Make = Callable[[], tuple[nn.Module, Any]]


@dataclass(frozen=True)
class Attack:
    """A model and a loss made to mix examples.

    Attributes:
        ends: "apart": as one example at a time, exactly. "isolated": no record moves another, but
            what comes out is not compared. "refused": a ValueError says why. "either": one of
            the last two.
        draws: whether it draws random numbers, so that only batches of one size compare.
    """

    make: Make
    ends: str
    draws: bool = False


ATTACKS: dict[str, Attack] = {}


class Attacks(dict[str, Attack]):
    """The attacks of one file, by name."""

    def __call__(self, ends: str, draws: bool = False) -> Callable[[Make], Make]:
        assert ends in ("apart", "isolated", "refused", "either")

        def add(make: Make) -> Make:
            self[make.__name__] = Attack(make, ends, draws)
            return make

        return add

    def parameters(self) -> list[Any]:
        return [pytest.param(attack, id=name) for name, attack in self.items()]


class Run(nn.Module):
    """A model from a function of (module, *inputs)."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self.function = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def head() -> nn.Linear:
    return nn.Linear(D, 3)


def classify(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def vectors(examples: int = B) -> tuple[Tensor, Tensor]:
    return randn(examples, D), randint(0, 3, (examples,))


@pytest.mark.filterwarnings("ignore")
def withstand(attack: Attack) -> None:
    """Assert that the attack ends as it must."""
    reseed(0)
    np.random.seed(0)  # noqa: NPY002 (the generator that models find)
    random.seed(0)
    model, loss = attack.make()
    x, y = vectors()
    given = x.clone(), y.clone()
    try:
        for scale, record in ((1.0, 1), (100.0, 4), (-1.0, 0)):
            for seed in range(4 if attack.draws else 1):
                assert_isolated(
                    model, loss, x, y, scale=scale, record=record, random=attack.draws, seed=seed
                )
    except ValueError as refusal:
        assert attack.ends in ("refused", "either"), refusal
        assert 20 < len(str(refusal)) < 1000
        return
    finally:
        torch.set_grad_enabled(True)
    assert attack.ends != "refused", "was accepted"
    assert torch.equal(x, given[0]) and torch.equal(y, given[1]), "the records were changed"
    if attack.ends == "apart":
        compare(model, loss, x, y)

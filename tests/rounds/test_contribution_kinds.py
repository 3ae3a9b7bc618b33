"""Every registered kind of contribution: no record moves a sum further than its clipping says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forethought.rounds.contributions import (
    CONTRIBUTORS,
    STATISTIC,
    LinearModel,
    LinearRecords,
    squared_error,
)
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import (
    ADJACENCIES,
    CLIPPINGS,
    GRADIENTS,
    Contribution,
    FullBatch,
    Local,
    Mechanism,
    Rounds,
)
from forethought.values.plan import CONTRIBUTIONS, NAMES, Clip, Privacy

RECORDS, NORM = 7, 0.25


def numbers(changed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Records of which the first says one thing or the opposite, louder than all others."""
    rng = np.random.default_rng(4)
    inputs, targets = rng.standard_normal((RECORDS, 5)), rng.standard_normal((RECORDS, 1))
    inputs[0], targets[0] = 50.0, -90.0 if changed else 90.0
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def of_a_network(changed: bool) -> tuple[Any, dict[str, torch.Tensor], Any]:
    model = nn.Linear(5, 1).double()
    with torch.no_grad():
        for place, weight in enumerate(model.parameters()):
            weight.fill_(0.1 + place)
    return model, dict(model.named_parameters()), TensorRecords(*numbers(changed))


def of_a_matrix(changed: bool) -> tuple[Any, dict[str, torch.Tensor], Any]:
    model = LinearModel(5, 1, lambda outputs, targets: outputs - targets)
    return model, dict(model.named_parameters()), LinearRecords(*numbers(changed))


def of_vectors(changed: bool) -> tuple[Any, dict[str, torch.Tensor], Any]:
    inputs, targets = numbers(changed)
    if changed:
        inputs[0] = -inputs[0]
    layout = {STATISTIC: torch.zeros(5, dtype=torch.float64)}
    return nn.Module(), layout, TensorRecords(inputs, targets)


# A value of each kind, and what it is computed from.
KINDS: dict[str, tuple[dict[str, Any], Callable[[bool], tuple[Any, dict[str, torch.Tensor], Any]]]]
KINDS = {
    "examples": ({}, of_a_network),
    "groups": ({"count": 3}, of_a_network),
    "linear-examples": ({}, of_a_matrix),
    "local": ({"count": 3, "local": Local("sgd", 0.1)}, of_a_network),
    "persons": ({"records": 1}, of_a_network),
    "statistics": ({"name": next(iter(NAMES.values()))}, of_vectors),
}


def value(kind: str) -> Contribution:
    return CONTRIBUTIONS[kind](**KINDS[kind][0])


def total(kind: str, changed: bool) -> torch.Tensor:
    """The first round's sum, without noise, over the same batch dealt in the same way."""
    contribution = value(kind)
    model, layout, records = KINDS[kind][1](changed)
    part = Rounds(0.0, 1, FullBatch(), contribution.clipping, groups=contribution.groups)
    privacy = Privacy(Mechanism(part), RECORDS, 1e-5, Clip(NORM), contribution)
    opened = PrivateRounds(privacy, layout, squared_error, Secrets.draw(Seeds(3, 3))).open(0)
    opened.add(model, records)
    return opened.release().vector.double()


def test_every_kind_is_computed_tried_and_says_what_it_is() -> None:
    assert set(CONTRIBUTORS) == set(CONTRIBUTIONS.values())
    assert set(KINDS) == set(CONTRIBUTIONS), "a kind of contribution that nothing tries"
    for kind, cls in CONTRIBUTIONS.items():
        own = value(kind)
        said = {"kind", "clipping", "alterable", "groups", "released", "expected"}
        assert said <= set(vars(cls)), f"{cls.__name__} leaves out {said - set(vars(cls))}"
        assert isinstance(own, Contribution) and own.clipping in CLIPPINGS
        assert (own.groups is not None) is (own.clipping == "group")
        assert own.released == (own.name if kind == "statistics" else GRADIENTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_moves_the_sum_by_at_most_what_is_accounted(kind: str) -> None:
    part = Rounds(1.0, 1, FullBatch(), value(kind).clipping)
    most = max(part.sensitivity(adjacency) for adjacency in ADJACENCIES)
    moved = float((total(kind, False) - total(kind, True)).norm()) / NORM
    # Loud enough that the bound is what holds it.
    assert 0.9 * most < moved <= most

"""Which honest models go one example at a time: exactly those that are listed here.

The architectures of :mod:`test_architectures` and of the zoo, which have a fast path each, fail
their own tests where they lose it; this counts the models that were made to be difficult.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from adversaries import (
    test_backward,
    test_batching_rules,
    test_own_functions,
    test_state,
    test_values,
)
from adversaries.attack import vectors

from forethought.gradients import SlowGradientsWarning, clipped_sum

SLOW = {
    test_backward: {
        "layer_where_functions_are_not_seen",
        "rows_of_a_table_where_functions_are_not_seen",
        "scripted_function_with_a_branch",
        "vmap_inside",
        "mode_of_dispatch_inside",
        "derivatives_by_transform_inside",
        "derivatives_by_autograd_inside",
    },
    test_batching_rules: {  # rules of torch's that may mix
        "solving_with_one_matrix_and_several_columns",
        "solving_from_the_right",
        "solving_with_a_shared_matrix",
        "solving_without_checks",
        "least_squares",
        "solving_with_factors",
        "filling_with_a_number",
        "filling_in_place_with_a_number",
        "solving_for_parameters",
    },
    test_own_functions: {
        *("Attributes", "Branching", "Sparse", "InnerAutograd", "InPlace", "NumberOfTheGradient"),
        *("after_a_branch", "before_a_branch"),
    },
    test_state: set(),
    test_values: {"out_argument", "several_at_once"},
}


def slow(model: Any, loss: Any, inputs: Any, targets: Any) -> bool:
    """Whether a pass over the batch goes one example at a time."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        clipped_sum(model, loss, inputs, targets, 1.0)
    return any(issubclass(one.category, SlowGradientsWarning) for one in said)


@pytest.mark.parametrize("attacks", SLOW, ids=lambda module: module.__name__.partition("_")[2])
def test_no_model_loses_or_wins_a_fast_path_unnoticed(attacks: Any) -> None:
    found = set()
    for name, attack in attacks.attack.items():
        if attack.ends in ("apart", "isolated"):
            torch.manual_seed(0)
            model, loss = attack.make()
            if slow(model, loss, *vectors()):
                found.add(name)
    assert found == SLOW[attacks]


def test_the_warning_points_at_the_line_of_the_caller() -> None:
    attack = test_backward.attack["vmap_inside"]
    model, loss = attack.make()
    with pytest.warns(SlowGradientsWarning) as said:
        slowly(model, loss)
    assert {warning.filename for warning in said} == {__file__}


def slowly(model: Any, loss: Any) -> None:
    clipped_sum(model, loss, *vectors(), 1.0)

"""Statement: readable, recomputable, and rejected when it was edited."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import forethought as ft
from forethought.accounting.adaptive import NegativeBinomialTrials, selection_details
from forethought.accounting.statement import (
    SCORE,
    StatedRelease,
    Statement,
    StatementError,
    account,
    json_schema,
)
from forethought.accounting.verification import verify
from forethought.federated.statements import disjoint
from forethought.values.caveats import Caveat
from forethought.values.mechanism import GRADIENTS
from forethought.values.serialisation import digest

MECHANISM = ft.Mechanism(ft.Rounds(1.1, 200, ft.Poisson(0.01)))


@pytest.fixture(scope="module")
def statement() -> Statement:
    return account(MECHANISM, 1e-5)


def edited(statement: Statement, change: Any) -> str:
    """The statement after somebody edited it carefully: repeated entries and checksum fit."""
    values = json.loads(statement.to_json())
    change(values)
    del values["checksum"]
    return json.dumps({**values, "checksum": digest(values)})


def test_one_search_releases_one_score(statement: Statement) -> None:
    mechanism = ft.Mechanism(ft.Rounds(5.0, 10, ft.FullBatch()))
    details = selection_details(mechanism, [mechanism], NegativeBinomialTrials(0.1), 20.0, 1e-5)
    for scores in (1, 2, 1000):
        rows = [StatedRelease(GRADIENTS, 10, 5.0), StatedRelease(SCORE, scores, 20.0)]
        told = account(mechanism, 1e-5, accountant=details, releases=rows).unaccounted()
        assert (told is None) == (scores == 1)


def test_a_guarantee_for_all_holders_needs_that_of_each() -> None:
    rounds = ft.Mechanism(ft.Rounds(6.0, 10, ft.FullBatch()))
    cause = Caveat("data-dependent-noise", "in proportion to the gradient")
    broken = account(rounds, 1e-5, not_covered=[cause])
    assert not broken.private and not disjoint({"a": broken}).private
    note = Caveat("features-from-data", "means")
    told = account(rounds, 1e-5, not_covered=[note])
    plain = account(ft.Mechanism(ft.Rounds(5.0, 10, ft.FullBatch())), 1e-5)
    same = account(rounds, 1e-5)
    for two in ({"a": plain, "b": told}, {"a": told, "b": same}, {"b": same, "a": told}):
        assert note in disjoint(two).not_covered


def test_a_statement_that_bounds_no_attack_is_refused(statement: Statement) -> None:
    text = edited(statement, lambda values: values.update(attack=[]))
    with pytest.raises(StatementError, match="no false-alarm rates"):
        Statement.from_json(text)


def test_it_round_trips_and_verifies(statement: Statement) -> None:
    again = Statement.from_json(statement.to_json())
    assert again == statement
    assert verify(again).epsilon == statement.epsilon


def test_it_meets_the_published_schema(statement: Statement) -> None:
    jsonschema.validate(json.loads(statement.to_json()), json_schema())
    endless = account(ft.Mechanism(ft.Rounds(0.0, 1, ft.FullBatch())), 1e-5)
    jsonschema.validate(json.loads(endless.to_json()), json_schema())


def set_epsilon(values: Any) -> None:
    values["epsilon"] = {
        "lower": values["epsilon"]["lower"] / 2,
        "upper": values["epsilon"]["upper"] / 2,
    }


def set_upper(values: Any) -> None:
    values["epsilon"]["upper"] *= 0.99
    values["epsilon"]["lower"] *= 0.99


def set_sigma(values: Any) -> None:
    values["mechanism"]["rounds"][0]["noise_multiplier"] = 1.0


def set_sigma_up(values: Any) -> None:
    values["mechanism"]["rounds"][0]["noise_multiplier"] = 1.2


def set_rounds(values: Any) -> None:
    values["mechanism"]["rounds"][0]["rounds"] = 300
    values["rounds"] = 300


def set_delta(values: Any) -> None:
    values["delta"] = 1e-7


def set_group(values: Any) -> None:
    values["group"] = 4


def set_attack(values: Any) -> None:
    values["attack"][0]["true_positive_rate"] /= 2


@pytest.mark.parametrize(
    "change",
    [set_epsilon, set_upper, set_sigma, set_sigma_up, set_rounds, set_delta, set_group, set_attack],
)
def test_an_edited_number_is_rejected_even_with_a_fresh_checksum(
    statement: Statement, change: Any
) -> None:
    with pytest.raises(StatementError):
        verify(Statement.from_json(edited(statement, change)))


def test_a_careless_edit_is_noticed(statement: Statement) -> None:
    text = statement.to_json().replace("stay secret", "are public")
    with pytest.raises(StatementError, match="edited"):
        Statement.from_json(text)


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"schema": "forethought/statement/9"}'])
def test_what_is_no_statement_is_refused_with_the_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "statement.json"
    path.write_text(text)
    with pytest.raises(StatementError, match=r"statement\.json"):
        Statement.load(path)


def test_no_noise_is_said_plainly() -> None:
    statement = account(ft.Mechanism(ft.Rounds(0.0, 1, ft.FullBatch())), 1e-5)
    assert math.isinf(statement.epsilon.upper)
    assert "not differentially private" in statement.sentences()[0]
    assert verify(Statement.from_json(statement.to_json())).epsilon == statement.epsilon


def test_a_seeded_run_and_private_uses_are_named() -> None:
    statement = account(MECHANISM, 1e-5, seeded=True, not_covered=("means of the columns",))
    text = statement.to_markdown()
    assert not statement.private
    assert math.isinf(statement.guarantee)
    assert statement.sentences()[0].startswith("Not private: seeded.")
    assert "the guarantee |" not in text
    assert "means of the columns" in text
    unseeded = account(MECHANISM, 1e-5, not_covered=("means of the columns",))
    assert "1 named use " in unseeded.sentences()[2]


def test_a_shorter_run_claims_only_what_it_released(statement: Statement) -> None:
    half = account(MECHANISM, 1e-5, released=100)
    assert len(half.mechanism) == 100
    assert half.epsilon.upper < statement.epsilon.upper


def test_the_attack_bound_holds_for_the_gaussian_mechanism() -> None:
    from scipy.special import ndtr, ndtri

    statement = account(ft.Mechanism(ft.Rounds(1.0, 1, ft.FullBatch())), 1e-5)
    for rate, power in statement.attack:
        assert power >= ndtr(ndtri(rate) + 1.0)  # the best test of N(0, 1) against N(1, 1)


def test_a_bare_mechanism_needs_a_delta() -> None:
    with pytest.raises(ValueError, match="delta="):
        account(MECHANISM)


@pytest.mark.parametrize("wrong", [None, "plan.json", 3.0])
def test_what_is_no_plan_is_said(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"forethought\.plan makes one"):
        account(wrong)

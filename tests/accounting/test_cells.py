"""Every registered cell against the truth of small runs, and every kind against its own batches.

The cells come from the registries, never from a list here: a kind that is added is tested, or the
test says which oracle it lacks.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from forethought.accounting import exact, theorems
from forethought.accounting.accountants import batches_known
from forethought.accounting.renyi import CURVES, rdp
from forethought.accounting.statement import account, json_schema
from forethought.accounting.theorems import SUPPORTED
from forethought.auditing.participation import TESTS
from forethought.rounds.randomness import SAMPLERS
from forethought.values.mechanism import (
    ADJACENCIES,
    CLIPPINGS,
    SAMPLINGS,
    Correlated,
    Mechanism,
    Poisson,
    Rounds,
    SamplingName,
    UnsupportedMechanismError,
)
from forethought.values.strategies import STRATEGIES, Banded, BufferedToeplitz


def _load(name: str):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"accounting_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


drawn, listed = _load("drawn"), _load("listed")
EPSILON, SIGMA = 0.7, 0.5
# The midpoint rule's own error: 3.2e-5 in two rounds of random allocation, beside 20 digits.
INTEGRAL = 5e-5
# What is compared with the truth where noise is correlated.
STRATEGY = {"banded": Banded((1.0, 0.5)), "buffered-toeplitz": BufferedToeplitz((0.5,), (0.5,))}


def part_of(kind: str, clipping: str, examples: int, count: int | None = None) -> Rounds:
    sampling = drawn.instance(kind, examples)
    groups = 2 if clipping == "group" else None
    return Rounds(SIGMA, count or sampling.rounds_per_epoch, sampling, clipping, groups=groups)


def too_low(
    kind: str,
    clipping: str,
    adjacency: str,
    group: int,
    count: int | None = None,
    epsilon: float = EPSILON,
) -> bool:
    """Whether the certified δ of a cell is below the exact δ of some data."""
    return below_truth(part_of(kind, clipping, 4, count), adjacency, group, 4, epsilon)


def below_truth(part: Rounds, adjacency: str, group: int, records: int, epsilon: float) -> bool:
    claimed = exact.delta(Mechanism(part, adjacency=adjacency), epsilon, group).upper
    truth = listed.least_delta(part, adjacency, group, records, epsilon, drawn.fewer)
    return bool(claimed * (1 + INTEGRAL) < truth)


def refuted(kind: str, clipping: str, adjacency: str, group: int) -> bool:
    """Whether an attack on drawn batches reaches more than a cell certifies."""
    part = part_of(kind, clipping, 12)
    claimed = exact.delta(Mechanism(part, adjacency=adjacency), EPSILON, group).upper
    reached = drawn.delta_reached(part, adjacency, group, 12, EPSILON)
    # An attack that hardly reaches anything would refute nobody.
    assert reached > 0.3 * claimed, f"the attack reaches {reached:.3f} of {claimed:.3f} only"
    return bool(reached > claimed)


def test_every_cell_has_an_oracle_and_a_draw() -> None:
    kinds = {kind for kind, _, _ in SUPPORTED}
    assert kinds == set(SAMPLINGS), "a sampling without a theorem in SUPPORTED, or the reverse"
    assert kinds == set(listed.WAYS), (
        "list all batches of the new kind in tests/accounting/listed.py"
    )
    assert set(SAMPLINGS.values()) == set(SAMPLERS), "a sampling that nothing draws"
    assert {SAMPLINGS[kind] for kind in CURVES} <= set(SAMPLERS) and set(TESTS) <= set(SAMPLERS)
    assert set(STRATEGIES) == set(STRATEGY), "a strategy that is compared with nothing"
    assert all(c in CLIPPINGS and a in ADJACENCIES for _, c, a in SUPPORTED)


@pytest.mark.slow
def test_plans_and_statements_know_every_sampling() -> None:
    assert set(get_args(SamplingName)) == set(SAMPLINGS)
    for kind in SAMPLINGS:
        part = part_of(kind, "example", 12)
        said = account(Mechanism(part, adjacency=part.sampling.usual_adjacency), delta=1e-5)
        jsonschema.validate(json.loads(said.to_json()), json_schema())
        assert Mechanism.from_json(said.mechanism.to_json()) == said.mechanism


def test_what_is_in_no_cell_is_refused_with_those_that_are() -> None:
    for kind, clipping, adjacency in product(SAMPLINGS, CLIPPINGS, ADJACENCIES):
        if (kind, clipping, adjacency) not in SUPPORTED:
            with pytest.raises(UnsupportedMechanismError, match="Use adjacency='zero-out'"):
                Mechanism(part_of(kind, clipping, 12), adjacency=adjacency)


def test_a_cell_that_is_taken_away_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SUPPORTED, ("poisson", "example", "zero-out"))
    with pytest.raises(UnsupportedMechanismError, match="'add-or-remove', 'replace-one'") as caught:
        theorems.parts(Mechanism(part_of("poisson", "example", 12), adjacency="zero-out"))
    assert "WithoutReplacement" in str(caught.value)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, marks=pytest.mark.slow if cell[0] == "random-allocation" else ())
        for cell in SUPPORTED
    ],
    ids="-".join,
)
@pytest.mark.parametrize("group", [1, 2])
def test_no_cell_certifies_less_than_the_truth(cell: tuple[str, str, str], group: int) -> None:
    assert not too_low(*cell, group)
    length = drawn.instance(cell[0], 4).rounds_per_epoch
    if length > 1:  # an epoch that was only begun
        assert not too_low(*cell, group, length - 1)


@pytest.mark.slow
@pytest.mark.parametrize("cell", SUPPORTED, ids="-".join)
def test_no_cell_certifies_less_than_an_attack_on_drawn_batches(cell: tuple[str, str, str]) -> None:
    assert not refuted(*cell, 1)
    assert not refuted(*cell, 2)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", SAMPLINGS)
def test_batches_follow_what_a_sampling_says_of_them(kind: str) -> None:
    """One false alarm in 10⁷ for each of its facts."""
    assert drawn.false_facts(drawn.instance(kind)) == []


def test_batches_that_come_twice_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is used in two rounds, and each round by itself is what it should be."""
    draws = SAMPLERS[Poisson]

    def echoed(*given: Any) -> Any:
        draw = draws(*given)
        return lambda index: draw(index - index % 2)

    monkeypatch.setitem(SAMPLERS, Poisson, echoed)
    drawn.drawn.cache_clear()
    (fault,) = drawn.false_facts(drawn.instance("poisson"))
    drawn.drawn.cache_clear()
    assert "independent" in fault


@pytest.mark.parametrize("cell", [c for c in SUPPORTED if c[0] in CURVES], ids="-".join)
def test_other_accountants_certify_no_less_either(cell: tuple[str, str, str]) -> None:
    part = part_of(cell[0], cell[1], 4)
    mechanism = Mechanism(part, adjacency=cell[2])
    truth = listed.least_delta(part, cell[2], 1, 4, EPSILON, drawn.fewer)
    assert rdp(mechanism).delta(EPSILON) >= truth * (1 - INTEGRAL)
    if cell[2] != "add-or-remove":  # seeded batches promise zero-out instead
        known = exact.delta(batches_known(mechanism), EPSILON)
        assert known.upper >= truth * (1 - INTEGRAL)


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_correlated_noise_certifies_no_less_than_the_truth(kind: str, adjacency: str) -> None:
    apart = [s for s in SAMPLINGS if drawn.instance(s, 4).turns_apart is not None]
    assert len(apart) >= 2
    for sampling, group in product(apart, (1, 2)):
        part = Correlated(SIGMA, 2, drawn.instance(sampling, 4), "example", STRATEGY[kind])
        try:
            claimed = exact.delta(Mechanism(part, adjacency=adjacency), EPSILON, group).upper
        except UnsupportedMechanismError:
            assert sampling == "cyclic-poisson" and kind == "buffered-toeplitz"
            continue
        columns = STRATEGY[kind].column(2)
        truth = listed.least_delta(part, adjacency, group, 4, EPSILON, drawn.fewer, columns)
        assert truth <= claimed * (1 + INTEGRAL)


@pytest.mark.slow
def test_a_sensitivity_that_is_a_little_short_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Rounds.per_hit
    monkeypatch.setattr(Rounds, "per_hit", lambda *given: 0.97 * honest(*given))
    # At another level: what was computed before is remembered.
    assert sum(too_low(*cell, 1, epsilon=0.71) for cell in SUPPORTED) >= 10

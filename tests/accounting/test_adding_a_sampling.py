"""The page on adding a sampling runs as it stands; added wrongly, the same sampling is red."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar

import pytest

from forethought.accounting import exact
from forethought.accounting.accountants import batches_known
from forethought.accounting.renyi import CURVES, rdp
from forethought.accounting.statement import account
from forethought.accounting.theorems import SUPPORTED
from forethought.papers.strong_adversary import KnownHits
from forethought.rounds.randomness import SAMPLERS
from forethought.values.mechanism import (
    ADJACENCIES,
    CLIPPINGS,
    SAMPLINGS,
    Binomial,
    Correlated,
    Mechanism,
    Rounds,
    Sampling,
    Shuffled,
    UnsupportedMechanismError,
    WithoutReplacement,
)
from forethought.values.strategies import Banded

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_sampling.md"
KIND = "with-replacement"
CELLS = [(KIND, *rest) for rest in product(CLIPPINGS, ADJACENCIES)]

_SPEC = importlib.util.spec_from_file_location(
    "accounting_cells", Path(__file__).parent / "test_cells.py"
)
assert _SPEC is not None and _SPEC.loader is not None
cells = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = cells
_SPEC.loader.exec_module(cells)


@pytest.fixture
def added() -> Iterator[type[Sampling]]:
    """The page's sampling, for one test."""
    registries = (SAMPLINGS, SUPPORTED, SAMPLERS, cells.listed.WAYS)
    before = [dict(registry) for registry in registries]
    scope: dict[str, object] = {"__name__": "page"}
    try:
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S):
            exec(compile(code, str(PAGE), "exec", dont_inherit=True), scope)
        cells.listed.WAYS[KIND] = every_draw
        yield SAMPLINGS[KIND]
    finally:
        for registry, kept in zip(registries, before, strict=True):
            registry.clear()
            registry.update(kept)
        cells.drawn.drawn.cache_clear()


def every_draw(sampling, records: int, rounds: int):
    """All lists of draws, for the exact truth of small runs."""
    batches = [
        tuple(draws.count(r) for r in range(records))
        for draws in product(range(records), repeat=sampling.batch)
    ]
    for run in product(batches, repeat=rounds):
        yield len(batches) ** -rounds, run


@pytest.mark.slow
def test_the_sampling_of_the_page_is_whole_and_sound(added: type[Sampling]) -> None:
    cells.test_every_cell_has_an_oracle_and_a_draw()
    assert cells.drawn.false_facts(cells.drawn.instance(KIND)) == []
    for cell, group in product(CELLS, (1, 2)):
        assert not cells.too_low(*cell, group), cell
        assert not cells.refuted(*cell, group), cell


def test_its_statement_claims_no_attack_that_nobody_knows(added: type[Sampling]) -> None:
    said = account(Mechanism(Rounds(1.0, 10, added(3, 12)), adjacency="replace-one"), 1e-5)
    assert said.attained is None and "-differentially private" in said.to_markdown()
    assert Mechanism.from_json(said.mechanism.to_json()) == said.mechanism


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_known_batches_count_every_draw(added: type[Sampling], adjacency: str) -> None:
    mechanism = Mechanism(Rounds(0.5, 1, added(3, 4)), adjacency=adjacency)
    assert mechanism.rounds[0].sensitivity(adjacency) == 2 * 3  # type: ignore[arg-type]
    known = batches_known(mechanism).rounds[0]
    assert math.isclose(known.noise_multiplier, 0.5 / 3, rel_tol=1e-12)
    assert exact.delta(mechanism, 0.7).upper <= exact.delta(batches_known(mechanism), 0.7).upper


def test_where_it_has_no_row_it_is_refused_with_those_that_have(added: type[Sampling]) -> None:
    part = Rounds(1.0, 1, added(3, 12))
    with pytest.raises(UnsupportedMechanismError, match=r"WithReplacement.*Poisson"):
        rdp(Mechanism(part))
    with pytest.raises(UnsupportedMechanismError, match="several times"):
        KnownHits.of_rounds(part, "replace-one")
    with pytest.raises(UnsupportedMechanismError, match="WithReplacement"):
        Correlated(1.0, 3, added(3, 12), "example", Banded((1.0,)))


def test_a_record_drawn_several_times_has_no_curve_of_one(
    added: type[Sampling], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row that was copied from Poisson's.
    monkeypatch.setitem(CURVES, added.kind, CURVES["poisson"])
    with pytest.raises(UnsupportedMechanismError, match="drawn once"):
        rdp(Mechanism(Rounds(1.0, 1, added(3, 12)), adjacency="replace-one"))


def test_turns_of_the_started_epoch_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # A kind whose rounds are not all as likely to hold a record.
    monkeypatch.setattr(Shuffled, "turn", lambda self, place: (place + 1) / 10)
    part = Rounds(1.0, 3, Shuffled(3, 12))
    known = KnownHits.of_rounds(part, "zero-out").hits
    assert math.isclose(known.mean, 0.1 + 0.2 + 0.3, rel_tol=1e-12)


def test_a_kind_without_an_oracle_is_red(added: type[Sampling]) -> None:
    del cells.listed.WAYS[KIND]
    with pytest.raises(AssertionError, match="list all batches"):
        cells.test_every_cell_has_an_oracle_and_a_draw()


def test_a_plain_value_beside_the_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class WithReplacement:
        batch: int
        examples: int
        kind: ClassVar[str] = KIND

    monkeypatch.setitem(SAMPLINGS, KIND, WithReplacement)
    with pytest.raises(TypeError, match="sampling must be"):
        Rounds(1.0, 1, WithReplacement(3, 12))  # type: ignore[arg-type]


def test_a_kind_that_leaves_something_out_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match=r"does not say.*hits.*most.*adding_a_sampling"):

        class WithReplacement(Sampling):
            kind = KIND

    # Nor does it inherit what is true of another kind.
    with pytest.raises(TypeError, match=r"does not say.*exchanges.*most"):

        class FromAnother(WithoutReplacement):
            kind = KIND


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"most": lambda self, records: records}, "most() says 1"),
        ({"hits": lambda self, records: Binomial(records, self.batch / self.examples)}, "hits(1)"),
    ],
    ids=["at most once", "as without replacement"],
)
def test_a_wrong_fact_is_seen(
    added: type[Sampling], monkeypatch: pytest.MonkeyPatch, facts: dict[str, object], said: str
) -> None:
    for name, fact in facts.items():
        monkeypatch.setattr(added, name, fact)
    assert any(said in fault for fault in cells.drawn.false_facts(cells.drawn.instance(KIND)))


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("facts", "adjacency"),
    [
        ({"most": lambda self, records: records}, "add-or-remove"),
        ({"most": lambda self, records: records}, "zero-out"),
        ({"exchanges": False}, "add-or-remove"),
        ({"exchanges": False}, "replace-one"),
        ({"hits": lambda self, records: Binomial(records, 1.0)}, "zero-out"),
    ],
    ids=["at most once", "at most once, blanked", "no exchange", "no exchange, replaced", "once"],
)
def test_what_follows_from_a_wrong_fact_is_below_the_truth(
    added: type[Sampling],
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, object],
    adjacency: str,
) -> None:
    # Six draws of two records: each is there three times on average.
    part = Rounds(2.0, 1, added(6, 2))
    assert not cells.below_truth(part, adjacency, 1, 2, 1.5)
    for name, fact in facts.items():
        monkeypatch.setattr(added, name, fact)
    assert cells.below_truth(part, adjacency, 1, 2, 1.51)

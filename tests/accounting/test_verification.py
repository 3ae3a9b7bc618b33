"""Forged statements: whatever entry is edited, verifying notices it or says that nobody can."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import forethought as ft
from forethought.accounting import verification
from forethought.accounting.adaptive import (
    NegativeBinomialTrials,
    RenyiFilter,
    selection_details,
)
from forethought.accounting.statement import (
    FROZEN_SCHEMA,
    STATEMENT_SCHEMA,
    Randomness,
    StatedRelease,
    Statement,
    StatementError,
    account,
    ended_early,
    plan_digest,
)
from forethought.accounting.verification import CHECKS, check, verify
from forethought.values.caveats import Caveat
from forethought.values.mechanism import (
    Budget,
    FullBatch,
    Mechanism,
    Persons,
    Poisson,
    Rounds,
    Shuffled,
)
from forethought.values.plan import Plan
from forethought.values.serialisation import digest

DELTA = 1e-5
MECHANISM = Mechanism(Rounds(1.1, 10, Poisson(0.1)), Rounds(2.3, 2, FullBatch()))
SAMPLED = Mechanism(
    Rounds(2.0, 20, Shuffled(50, 1000)),
    Rounds(3.0, 1, ft.WithoutReplacement(50, 1000)),
    adjacency="replace-one",
)
PLAN = Plan(MECHANISM, 1000, DELTA, not_covered=("means of the columns",))


def of_a_run() -> Statement:
    return account(
        PLAN,
        not_covered=(Caveat("held-out-accuracy"), Caveat("classes-from-data", "no, yes")),
        releases=(StatedRelease("sums", 10, 1.1), StatedRelease("sums", 2, 2.3)),
    )


def of_a_search() -> Statement:
    mechanism = Mechanism(Rounds(2.0, 50, Poisson(0.1)))
    other = Mechanism(Rounds(2.1, 50, Poisson(0.1)))
    trials = NegativeBinomialTrials.of_mean(10, 0.0)
    details = selection_details(mechanism, [mechanism, other], trials, 5.0, DELTA)
    return account(mechanism, DELTA, accountant=details, not_covered=(Caveat("disjoint-score"),))


def of_a_filter() -> Statement:
    mechanism = Mechanism(Rounds(2.0, 50, Poisson(0.1)))
    ledger = RenyiFilter(Budget(3.0, DELTA), orders=(6.0,))
    ledger.spend(mechanism)
    return account(mechanism, DELTA, accountant=ledger.details())


STATEMENTS = {
    "run": of_a_run,
    "group": lambda: account(SAMPLED, 1e-6, group=3),
    "known batches": lambda: account(MECHANISM, DELTA, randomness=Randomness(seeded_sampling=True)),
    "seeded noise": lambda: account(MECHANISM, DELTA, randomness=Randomness(seeded_noise=True)),
    "grid": lambda: account(MECHANISM, DELTA, randomness=Randomness(grid=True)),
    "search": of_a_search,
    "filter": of_a_filter,
    "no noise": lambda: account(Mechanism(Rounds(0.0, 3, FullBatch())), DELTA),
}


def forged(values: dict[str, Any]) -> Statement:
    """The statement with a fresh checksum: what a careful forger writes."""
    content = {key: value for key, value in values.items() if key not in ("checksum", "signature")}
    kept = {"signature": values["signature"]} if "signature" in values else {}
    return Statement.from_json(json.dumps({**content, "checksum": digest(content), **kept}))


def edits(value: Any) -> Iterator[Any]:
    """Other values in the place of this one."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value * 0.9, value + 1, -5, 0, value * 1.0001, "7")
    elif isinstance(value, str):
        yield from ("", "proved by NIST", f"{value}, and more", value[:-1])
    elif value is None:
        yield from (7, "something", 0.5)
    elif isinstance(value, list):
        yield []
        yield [*value, *(value[:1] or ["added"])]
        if value:
            yield value[:-1]
            yield value[1:]
            yield value[::-1]
    elif isinstance(value, dict):
        yield {}
        yield {**value, "extra": 1}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything inside, objects and lists included."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 3)):
            yield from places(value[index], (*path, index))


def outcomes(values: dict[str, Any], plan: Plan | None) -> Iterator[tuple[str, Any, str]]:
    """(entry, edit, what verifying says) for every edit of every place."""
    for path in places(values):
        if path[0] == "checksum":
            continue
        found: Any = values
        for key in path:
            found = found[key]
        for new in edits(found):
            if new == found and isinstance(new, bool) == isinstance(found, bool):
                continue
            changed = copy.deepcopy(values)
            inside: Any = changed
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = new
            try:
                now = check(forged(changed), plan)
            except StatementError:
                yield "/".join(map(str, path)), new, "caught"
                continue
            named = path[0] in dict(now.not_checked) or _moved_with(path, now)
            yield "/".join(map(str, path)), new, "named" if named else "passed"


def _moved_with(path: tuple[Any, ...], now: verification.Verification) -> bool:
    # An edit so small that ε and the attacks stay within what two machines differ by.
    near = {"delta", "mechanism", "accountant", "epsilon", "attack"}
    return path[0] in near and bool({"epsilon", "attack"} & set(dict(now.not_checked)))


# A search is verified anew for every edit, which takes long; a group's curve is long, too.
LONG = {"search", "group"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in STATEMENTS]
)
def test_every_edit_is_caught_or_named(name: str) -> None:
    values = json.loads(STATEMENTS[name]().to_json())
    plan = PLAN if name == "run" else None
    found = list(outcomes(values, plan))
    assert [(place, new) for place, new, what in found if what == "passed"] == []
    caught = {place.split("/")[0] for place, _, what in found if what == "caught"}
    assert values["attained"] is None or "attained" in caught
    assert caught >= {
        "epsilon",
        "adjacency",
        "mechanism",
        "accountant",
        "attack",
        "adversary",
        "theorems",
        "assumptions",
        "not_covered",
        "caveats",
        "hyperparameters",
    }


def test_a_missing_entry_is_caught() -> None:
    values = json.loads(of_a_run().to_json())
    for key in values:
        if key != "checksum":
            rest = {name: value for name, value in values.items() if name != key}
            with pytest.raises(StatementError):
                forged(rest)


def test_every_entry_has_a_check() -> None:
    values = json.loads(of_a_run().to_json())
    assert set(CHECKS) == {*values, "signature", "about"}


def edited(statement: Statement, **changes: Any) -> Statement:
    """Several entries edited at once, so that they fit each other; checksum and all."""
    return forged({**json.loads(statement.to_json()), **changes})


def without(statement: Statement, *codes: str) -> Statement:
    """Caveats struck out with everything that is said of them."""
    left = [one for one in statement.caveats if one.code not in codes]
    return Statement.from_json(replace(statement, caveats=tuple(left)).to_json())


@pytest.mark.parametrize(
    "code",
    ["public-size", "secret-batches", "secret-noise", "pseudo-random", "floating-point-noise"],
)
def test_an_assumption_cannot_be_struck_out(code: str) -> None:
    with pytest.raises(StatementError, match=code):
        verify(without(of_a_run(), code))


def test_the_mention_of_a_seed_cannot_be_struck_out() -> None:
    noise = account(MECHANISM, DELTA, randomness=Randomness(seeded_noise=True))
    with pytest.raises(StatementError, match="seeded-noise"):
        verify(without(noise, "seeded-noise"))
    batches = account(MECHANISM, DELTA, randomness=Randomness(seeded_sampling=True))
    with pytest.raises(StatementError, match="seeded-sampling"):
        verify(without(batches, "seeded-sampling"))
    with pytest.raises(StatementError):
        verify(edited(batches, randomness={**vars(Randomness())}))
    search = of_a_search()
    with pytest.raises(StatementError, match="hidden-trials"):
        verify(without(search, "hidden-trials"))


def test_what_is_not_so_cannot_be_added() -> None:
    added = replace(of_a_run(), caveats=(*of_a_run().caveats, Caveat("seeded-sampling")))
    with pytest.raises(StatementError, match="is not so"):
        verify(Statement.from_json(added.to_json()))


def test_what_the_issue_lists_is_caught() -> None:
    s = of_a_run()
    row = {"false_positive_rate": 1e-6, "true_positive_rate": 1e-3}
    lower = [
        {"false_positive_rate": rate, "true_positive_rate": 0.99 * power}
        for rate, power in s.attack
    ]
    for changes, said in (
        ({"attack": lower}, "succeeds at most"),
        ({"attack": [row]}, "false-alarm rates"),
        ({"attack": []}, "false-alarm rates"),
        ({"adversary": "sees nothing at all"}, "adversary"),
        ({"theorems": ["proved by NIST"]}, "theorems"),
        ({"assumptions": []}, "assumptions"),
        ({"examples": -5}, "examples"),
        ({"clip_norm": 2.0}, "clip norm"),
    ):
        with pytest.raises(StatementError, match=said):
            check(edited(s, **changes), PLAN)


def test_a_plan_of_persons_speaks_of_persons_and_nothing_less() -> None:
    plan = PLAN.with_(contribution=Persons(3))
    said = ft.account(plan)
    assert "for one person" in said.sentences()[0] and check(said, plan)
    with pytest.raises(StatementError, match="its plan says"):
        check(without(said, "persons"), plan)


@pytest.mark.parametrize(
    "more",
    [
        Caveat("persons", "at most 1,000"),
        Caveat("rows-of-persons", "9"),
        Caveat("statistics", "counts"),
        Caveat("augmented", "8 copies"),
        Caveat("utility-graph", "of public data"),
        Caveat("declared-as", "by a laboratory"),
        Caveat("candidates", "5"),
        Caveat("phases-by-results", "it stopped"),
    ],
)
def test_a_statement_says_no_more_than_its_plan(more: Caveat) -> None:
    for stated in (of_a_run(), ft.account(PLAN)):
        added = replace(stated, caveats=(*stated.caveats, more))
        with pytest.raises(StatementError, match=r"its (plan|accountant)"):
            check(added, PLAN)


def test_a_second_word_on_persons_is_not_that_of_the_plan() -> None:
    plan = PLAN.with_(contribution=Persons(3))
    said = ft.account(plan)
    more = replace(said, caveats=(*said.caveats, Caveat("persons", "all")))
    with pytest.raises(StatementError, match="plan does not"):
        check(more, plan)
    records = PLAN.with_(not_covered=(Caveat("persons", "at most 3"),))
    with pytest.raises(StatementError, match="for persons"):
        check(ft.account(records), records)


def test_phases_need_a_file_that_says_so() -> None:
    phased = replace(of_a_run(), caveats=(*of_a_run().caveats, Caveat("phases-fixed", "two")))
    with pytest.raises(StatementError, match="in phases"):
        check(phased, PLAN, files={"plan.json": "", "transcript.json": ""})
    assert check(phased, PLAN)


def test_a_run_of_its_own_accounts_for_all_of_its_plan() -> None:
    rows = (StatedRelease("sums", 8, 1.1),)
    short = account(PLAN, released=8, releases=rows)
    assert "mechanism" in dict(check(short, PLAN).not_checked)
    files = {"plan.json": b"", "transcript.json": b""}
    for others, refused in (({}, True), ({"gossip.json": b""}, False)):
        made = short.resting_on({**files, **others})
        assert made.evidence is not None
        try:
            assert "mechanism" in check(made, PLAN, files=made.evidence.files).checked
            assert not refused
        except StatementError as error:
            assert refused and "8 of the 12 rounds" in str(error)


def test_how_many_rounds_were_agreed_on_is_no_more_than_stated() -> None:
    """A plan may have more rounds than its holders agreed on, so fewer may be the whole run."""
    files = dict.fromkeys(("plan.json", "transcript.json", "federation.json"), b"")
    short = account(PLAN, released=8, releases=(StatedRelease("sums", 8, 1.1),))
    for agreed, known in ((12, True), (9, False)):
        early = ended_early(8, MECHANISM.first(agreed), DELTA, 1, {"kind": "exact"})
        kept = [one for one in short.caveats if one.code != "ended-early"]
        made = replace(short, caveats=(*kept, early)).resting_on(files)
        assert made.evidence is not None
        found = check(made, PLAN, files=made.evidence.files)
        assert ("mechanism" in found.checked) is known
        assert ("9 rounds" in dict(found.not_checked).get("mechanism", "")) is not known


@pytest.mark.parametrize("told", ["epsilon", "epsilon 2 of all", "epsilon 2 of all many at 1"])
def test_an_epsilon_of_no_number_of_planned_rounds_is_refused_in_words(told: str) -> None:
    short = account(PLAN, released=8)
    kept = [one for one in short.caveats if one.code != "ended-early"]
    with pytest.raises(StatementError, match="all planned rounds"):
        check(replace(short, caveats=(*kept, Caveat("ended-early", told))), PLAN)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clip": ft.Clip(2.0)}, "clip norm"),
        ({"optimizer": ft.Optimizer("adam")}, "hash differs"),
        ({"mechanism": MECHANISM.first(5)}, "mechanism is not that of the plan"),
        ({"mechanism": SAMPLED}, "records|mechanism"),
        ({"examples": 999}, "records"),
        ({"delta": 1e-6}, "the statement's δ"),
        ({"not_covered": ("means of the columns", "more")}, "leaves out what its plan says: more"),
        ({"hyperparameters": "copied from a paper"}, "copied from a paper"),
    ],
)
def test_another_plan_beside_it_is_caught(changes: dict[str, Any], said: str) -> None:
    assert "plan" in check(of_a_run(), PLAN).checked
    with pytest.raises((StatementError, ValueError), match=said):
        check(of_a_run(), PLAN.with_(**changes))


def test_a_shorter_run_is_that_of_its_plan() -> None:
    short = account(PLAN, released=11)
    assert "mechanism" in check(short, PLAN).checked


def a_filter(mechanism: Mechanism) -> dict[str, Any]:
    ledger = RenyiFilter(Budget(20.0, DELTA), orders=(6.0,))
    ledger.spend(mechanism)
    return ledger.details()


WAYS = {
    "aggregate": lambda _: {"kind": "aggregate", "gain": 1.5},
    "network": lambda one: {"kind": "network", "gains": [[1.5, len(one)]], "observers": 1},
    "secure-aggregation": lambda _: {
        **{"kind": "secure-aggregation", "clients": 3, "dropouts": 0, "colluders": 0},
        **{"coordinates": 10, "scale": 1000.0},
    },
    "selection": lambda one: selection_details(
        one, [one], NegativeBinomialTrials.of_mean(10, 0.0), 5.0, DELTA
    ),
    "renyi-filter": a_filter,
}


@pytest.mark.parametrize("kind", WAYS)
def test_the_rounds_of_every_way_are_compared_with_the_plan(kind: str) -> None:
    def row(mechanism: Mechanism) -> str | None:
        stated = account(PLAN.with_(mechanism=mechanism), accountant=WAYS[kind](mechanism))
        try:
            found = check(stated, PLAN)
        except StatementError as error:
            return str(error)
        return dict(found.not_checked).get("mechanism")

    assert row(MECHANISM) is None
    said = "chosen by results" if kind == "renyi-filter" else "is not that of the plan.json"
    assert said in (row(Mechanism(Rounds(1.1, 3, Poisson(0.001)))) or "")
    # A run may have stopped; a trial of a search is whole.
    shorter = row(MECHANISM.first(11))
    assert said in str(shorter) if kind in ("selection", "renyi-filter") else shorter is None


def test_what_cannot_be_recomputed_is_listed() -> None:
    alone = dict(check(of_a_run()).not_checked)
    unknown = {"version", "examples", "clip_norm", "plan", "randomness", "signature"}
    assert unknown | {"delta", "group"} <= set(alone)
    assert "epsilon" not in alone
    beside = dict(check(of_a_run(), PLAN).not_checked)
    assert not {"examples", "clip_norm", "plan", "mechanism", "delta", "group"} & set(beside)


def test_an_older_version_may_be_looser_but_never_wrong() -> None:
    s = of_a_run()
    wide = ft.Interval(0.9 * s.epsilon.lower, 1.1 * s.epsilon.upper)
    with pytest.raises(StatementError, match="those it was"):
        verify(replace(s, epsilon=wide))
    older = replace(s, epsilon=wide, version="0.0.1")
    assert "epsilon" in dict(check(older).not_checked)
    assert verify(older).epsilon == s.epsilon
    with pytest.raises(StatementError, match="does not hold"):
        verify(replace(older, epsilon=ft.Interval(0.0, 0.99 * s.epsilon.lower)))


def test_a_lower_bound_on_the_truth_is_recomputed_and_never_above_what_is_proven() -> None:
    s = of_a_run()
    assert s.attained is not None and "attained" in check(s).checked
    for version in (s.version, "0.0.1"):
        more = replace(s.attained, epsilon=1.01 * s.epsilon.upper)
        with pytest.raises(StatementError, match="at most"):
            verify(replace(s, attained=more, version=version))
    for other in (None, replace(s.attained, epsilon=0.9 * s.attained.epsilon)):
        with pytest.raises(StatementError, match="data sets attain"):
            verify(replace(s, attained=other))
        assert "attained" in dict(check(replace(s, attained=other, version="0.0.1")).not_checked)


def test_a_statement_of_the_frozen_schema_holds_and_comes_out_in_the_next() -> None:
    s = replace(of_a_run(), schema=FROZEN_SCHEMA, attained=None)
    read = Statement.from_json(s.to_json())
    assert read == s and "attained" not in json.loads(s.to_json())
    found = check(read)
    assert found.statement == s and "attained" in dict(found.not_checked)
    wide = ft.Interval(s.epsilon.lower, 1.1 * s.epsilon.upper)
    now = verify(replace(read, epsilon=wide, version="0.0.1"))
    assert now.schema == STATEMENT_SCHEMA and now.attained == of_a_run().attained


def test_a_claim_between_two_certified_ends_holds() -> None:
    """Another machine may stop refining elsewhere: what finer accounting proves is accepted."""
    s = of_a_run()
    finer = ft.epsilon(MECHANISM, DELTA, accuracy=1e-5)
    assert finer.upper < s.epsilon.upper
    between = ft.Interval(s.epsilon.lower, (finer.upper + s.epsilon.upper) / 2)
    assert "epsilon" in dict(check(replace(s, epsilon=between)).not_checked)
    below = ft.Interval(s.epsilon.lower, (s.epsilon.lower + finer.lower) / 2)
    with pytest.raises(StatementError, match="does not hold"):
        verify(replace(s, epsilon=below))


def test_rounds_released_again_have_the_plans_noise_or_less() -> None:
    planned = Plan(Mechanism(Rounds(2.0, 10, Poisson(0.1))), 500, 1e-6)
    stated = planned.with_(
        mechanism=Mechanism(
            Rounds(2.0, 4, Poisson(0.1)), Rounds(1.4, 3, Poisson(0.1)), Rounds(2.0, 3, Poisson(0.1))
        )
    )
    more = (Caveat("released-again", "3 of 10"),)

    def holds(mechanism: Mechanism, caveats: tuple[Caveat, ...] = more) -> bool:
        made = account(planned.with_(mechanism=mechanism), not_covered=caveats)
        try:
            check(replace(made, plan=plan_digest(planned.to_dict())), planned)
        except StatementError:
            return False
        return True

    assert holds(stated.mechanism)
    assert not holds(stated.mechanism, ())
    louder = Rounds(2.5, 3, Poisson(0.1))
    rest = Rounds(2.0, 7, Poisson(0.1))
    assert not holds(Mechanism(rest, louder))
    assert not holds(Mechanism(rest, Rounds(1.4, 3, Poisson(0.05))))
    assert not holds(Mechanism(rest, Rounds(1.4, 2, Poisson(0.1))))

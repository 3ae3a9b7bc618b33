"""Bounds are printed on their safe side: as numbers, and on every page that shows them."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
from rich.console import Console

import forethought as ft
from forethought.accounting.exact import epsilon
from forethought.accounting.interval import Interval, at_least, at_most, reached
from forethought.accounting.statement import account
from forethought.papers.comparison import compare
from forethought.report import page, terminal
from forethought.values.mechanism import Mechanism, Poisson, RandomAllocation, Rounds
from forethought.values.serialisation import plain

FORMS = (".2g", ".3g", ".4g", ".5g", ".6g", ".3f", ".0%", ".1%", ".2%", ",.4g")


def number(text: str) -> Decimal:
    value = Decimal(text.rstrip("%").replace(",", ""))
    return value / 100 if text.endswith("%") else value


@pytest.mark.parametrize("form", FORMS)
def test_no_bound_is_printed_on_its_wrong_side(form):
    rng = np.random.default_rng(3)
    exponents = rng.uniform(-12, 5, 3000) if form[-1] == "g" else rng.uniform(-6, 0.3, 3000)
    for value in map(float, 10.0**exponents):
        above, below = at_most(value, form), at_least(value, form)
        exact = Decimal(repr(value))
        assert number(below) <= exact <= number(above)
        # No further than one unit of the last digit.
        last = Decimal("0.11") * exact if form[-1] == "g" else Decimal("0.01")
        assert number(above) - number(below) <= last


@pytest.mark.parametrize("form", ["g", ".17g", ".4g", ".2f", ",.0f", ".1%"])
def test_no_double_is_printed_on_its_wrong_side(form):
    # Every exponent: beyond 2^53 and below the normal ones as well.
    form = ".6g" if form == "g" else form
    bits = np.random.default_rng(4).integers(0, 0x7FF << 52, 2000)
    edges = np.array([5e-324, 2.5e-320, 2.3e-308, 1e16, 1e23, 9007199254740993.0, 1.7e308])
    for value in map(float, np.concatenate([bits.view(float), edges])):
        exact = Decimal(repr(value))
        with localcontext(prec=1000):
            assert number(at_least(value, form)) <= exact <= number(at_most(value, form))


def test_what_is_exact_is_printed_as_it_is():
    assert [at_most(x) for x in (1e-5, 0.1, 0.3, 2.0, 1234.0)] == [
        "1e-05",
        "0.1",
        "0.3",
        "2",
        "1234",
    ]
    assert at_least(1e-5, ".3g") == "1e-05" and at_most(0.3 - 0.2) == "0.1"
    assert at_most(1.0, ".2%") == "100.00%" and at_most(float("inf")) == "inf"
    assert f"{Interval(1.31818, 1.31912):.4g}" == "[1.318, 1.32]"


def printed(statement) -> list[str]:
    """Every page that shows a statement, as text."""
    console = Console(file=io.StringIO(), width=300)
    terminal.show_statement(console, statement)
    terminal.show_comparison(console, compare(statement.mechanism, statement.delta))
    return [
        " ".join(statement.sentences()),
        statement.to_markdown(),
        page.statement_page(statement, "title"),
        console.file.getvalue(),
    ]


@pytest.mark.slow
def test_every_page_rounds_bounds_to_their_safe_side():
    # ε and rates with digits that are rounded down by custom, as 1.31918 and 5.54 % once were.
    rng = np.random.default_rng(8)
    made = account(Mechanism(Rounds(1.1, 2000, Poisson(0.01))), 1e-5)
    for _ in range(20):
        upper = float(rng.uniform(0.5, 9)) + 1e-9
        lower = upper * 0.9991
        powers = [x + float(rng.uniform(0.01, 0.09)) for x in (0.2, 0.4, 0.6)]
        statement = replace(
            made,
            epsilon=Interval(lower, upper),
            delta=float(rng.uniform(1e-6, 9e-6)),
            attack=tuple((rate, x) for (rate, _), x in zip(made.attack, powers, strict=True)),
        )
        for text in printed(statement):
            for shown in re.findall(r"\d+\.\d+(?:e-\d+)?%?", text):
                value = number(shown)
                for bound in (upper, statement.delta, *powers):
                    exact = Decimal(repr(bound))
                    near = max(exact * Decimal("0.0004"), Decimal("0.0006") * shown.endswith("%"))
                    # A number that can only be this bound is not below it.
                    if abs(value - exact) < near and (bound != upper or value > Decimal(lower)):
                        assert value >= exact, shown


def test_where_the_ends_are_apart_it_says_why():
    near = epsilon(Mechanism(Rounds(1.1, 100, Poisson(0.01))), 1e-5)
    assert near.reason is None and near.relative_width <= 1e-3
    # So little noise that no law of an epoch is built; and a chain of single changes.
    little = Mechanism(Rounds(0.05, 20, RandomAllocation(10)))
    far = epsilon(little, 1e-6)
    assert far.relative_width > 1e-2 and "noise is so little" in far.reason
    assert far == Interval(far.lower, far.upper), "the words are no part of the value"
    assert plain(far) == {"lower": far.lower, "upper": far.upper}
    _, markdown, _, shown = printed(account(little, 1e-6))
    assert far.reason in markdown and far.reason in shown


def test_ends_that_meet_are_no_wide_interval(recwarn: pytest.WarningsRecorder) -> None:
    """Without noise both ends are infinite, and no work would bring them closer."""
    ft.plan(examples=100, batch=10, rounds=3, noise_multiplier=0.0, delta=1e-5)
    assert not [one for one in recwarn if "certified is only" in str(one.message)]


def test_a_bracket_grows_until_it_holds_the_end_or_no_more_is_allowed():
    asked = []

    def below(at):
        asked.append(at)
        return at < 5.25

    assert reached(below, 0.0, 1.0, relative=1e-3) == pytest.approx((5.25, 5.25), rel=2e-3)
    assert asked[:4] == [1.0, 2.0, 4.0, 8.0]
    assert reached(below, 0.0, 1.0, 3.0) == (3.0, math.inf)
    assert reached(lambda _: True, 0.0, 1.0)[1] == math.inf

"""Attackers who see sums of clients: the issue's figures, refusals, statements that verify."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import forethought as ft
from forethought.accounting.accountants import (
    AGGREGATE,
    NETWORK,
    ROUNDING_SCALE,
    SECURE_AGGREGATION,
    real_divergence,
    sum_divergence,
)
from forethought.accounting.dominating_pair import gaussian_epsilon, gaussian_mu
from forethought.accounting.statement import Statement, StatementError, account
from forethought.accounting.verification import verify
from forethought.values.caveats import Caveat
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds

DELTA = 1e-5
MECHANISM = Mechanism(Rounds(2.42, 120, Poisson(0.1)))
SECURE = {
    "kind": SECURE_AGGREGATION,
    "clients": 10,
    "dropouts": 2,
    "colluders": 2,
    "coordinates": 7850,
    "scale": 2.0**25,
}


GAIN = math.sqrt(6)
DISTANT = {"kind": NETWORK, "gains": [[GAIN, 120]], "observers": 1}


def test_ten_clients_of_which_two_drop_out_and_two_collude() -> None:
    """ε 3.90 becomes 1.38: a full-batch run at δ = 1e-4, by the closed form of its Gaussian."""
    mu = gaussian_mu(3.90, 1e-4)
    alone = Mechanism(Rounds(math.sqrt(50) / mu, 50, FullBatch()))
    assert account(alone, 1e-4).guarantee == pytest.approx(3.90, abs=0.005)
    together = account(alone, 1e-4, accountant=SECURE)
    assert together.guarantee == pytest.approx(1.38, abs=0.005)
    assert together.guarantee == pytest.approx(gaussian_epsilon(1e-4, mu / math.sqrt(6)), rel=1e-6)
    # Two that drop out or collude, not two of each: eight are left.
    eight = account(alone, 1e-4, accountant={**SECURE, "colluders": 0})
    assert eight.guarantee == pytest.approx(1.172, abs=0.002)


@pytest.mark.parametrize("details", [SECURE, {"kind": AGGREGATE, "gain": GAIN}, DISTANT])
def test_epsilon_is_that_of_the_noise_nobody_else_knows(details: dict) -> None:
    found = account(MECHANISM, DELTA, accountant=details)
    wanted = ft.epsilon(Mechanism(Rounds(2.42 * math.sqrt(6), 120, Poisson(0.1))), DELTA)
    assert found.epsilon.upper == pytest.approx(wanted.upper, rel=1e-6)
    assert found.epsilon.upper >= wanted.lower
    assert "others-noise" in {caveat.code for caveat in found.caveats}


@pytest.mark.parametrize("details", [SECURE, {"kind": AGGREGATE, "gain": GAIN}, DISTANT])
def test_attacks_are_bounded_by_the_whole_curve(details: dict) -> None:
    """As for rounds that were planned with that noise, and not by one (ε, δ) only."""
    found = account(MECHANISM, DELTA, accountant=details).attack
    direct = account(Mechanism(Rounds(2.42 * math.sqrt(6), 120, Poisson(0.1))), DELTA).attack
    for (rate, power), (other, wanted) in zip(found, direct, strict=True):
        assert rate == other and power == pytest.approx(wanted, rel=1e-4)
    coarse = account(MECHANISM, DELTA, accountant={**SECURE, "scale": 4.0})
    assert coarse.attack[0][1] > found[0][1]


def test_a_gain_of_one_is_the_server_s_own_epsilon() -> None:
    alone = account(MECHANISM, DELTA, accountant={"kind": AGGREGATE, "gain": 1.0})
    assert alone.epsilon == account(MECHANISM, DELTA).epsilon


@pytest.mark.parametrize("details", [SECURE, {"kind": AGGREGATE, "gain": 3.0}, DISTANT])
def test_such_a_statement_is_read_back_verified_and_cannot_be_bettered(details: dict) -> None:
    made = account(MECHANISM, DELTA, accountant=details)
    again = Statement.from_json(made.to_json())
    assert verify(again).epsilon == made.epsilon
    assert json.loads(made.to_json())["accountant"]["kind"] == details["kind"]
    less = replace(made, epsilon=ft.Interval(made.epsilon.lower / 2, made.epsilon.upper / 2))
    with pytest.raises(StatementError):
        verify(less)
    bare = tuple(caveat for caveat in made.caveats if caveat.code != "others-noise")
    with pytest.raises(StatementError, match="others-noise"):
        verify(replace(made, caveats=bare))
    extra = (*account(MECHANISM, DELTA).caveats, Caveat("others-noise"))
    with pytest.raises(StatementError, match="is not so"):
        verify(replace(account(MECHANISM, DELTA), caveats=extra))
    assert "s records" in made.sentences()[0]


def test_a_coarse_grid_is_charged_or_refused() -> None:
    fine = account(MECHANISM, DELTA, accountant=SECURE).guarantee
    coarse = account(MECHANISM, DELTA, accountant={**SECURE, "scale": 4.0}).guarantee
    assert fine < coarse < 1.1 * fine
    with pytest.raises(ValueError, match="finer grid"):
        account(MECHANISM, DELTA, accountant={**SECURE, "scale": 0.6})
    with pytest.raises(ValueError, match="too coarse"):
        account(MECHANISM, DELTA, accountant={**SECURE, "scale": 1.3, "coordinates": 10**9})


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"kind": AGGREGATE, "gain": 0.5}, "gain must be"),
        ({"kind": AGGREGATE}, "gain"),
        ({**DISTANT, "gains": [[0.5, 120]]}, "gain must be"),
        ({**DISTANT, "gains": [[2.0, 119]]}, "119 rounds, the mechanism has 120"),
        ({**DISTANT, "observers": 0}, "observers must be"),
        ({**SECURE, "dropouts": 8}, "neither drop out nor collude"),
        ({**SECURE, "clients": 1}, "clients must be"),
        ({**SECURE, "coordinates": 0}, "coordinates must be"),
    ],
)
def test_details_that_make_no_sense_are_refused(details: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        account(MECHANISM, DELTA, accountant=details)


def test_seeded_batches_take_over() -> None:
    from forethought.accounting.statement import Randomness

    seeded = account(
        MECHANISM, DELTA, accountant=SECURE, randomness=Randomness(seeded_sampling=True)
    )
    assert seeded.accountant == {"kind": "known-batches"}
    assert seeded.guarantee > 2


def test_rounds_that_an_observer_sees_unequally_each_count_at_their_own_noise() -> None:
    """As if each had been planned with that noise; of several kinds of rounds, at the least."""
    gains = [[1.0, 20], [2.0, 100]]
    found = account(MECHANISM, DELTA, accountant={**DISTANT, "gains": gains}).epsilon
    direct = Mechanism(Rounds(2.42, 20, Poisson(0.1)), Rounds(4.84, 100, Poisson(0.1)))
    assert found.upper == pytest.approx(ft.epsilon(direct, DELTA).upper, rel=1e-5)
    two = Mechanism(Rounds(2.0, 60, Poisson(0.1)), Rounds(3.0, 60, Poisson(0.1)))
    least = account(two, DELTA, accountant={**DISTANT, "gains": gains}).epsilon
    assert least == account(two, DELTA).epsilon


def test_the_divergence_of_the_grid_takes_its_share_of_delta() -> None:
    """By hand, of one Gaussian round: ε at δ·e^(−d), and 2d more (discrete_gaussian)."""
    whole, scale = Mechanism(Rounds(2.0, 1, FullBatch()), adjacency="zero-out"), 1.3
    details = {**SECURE, "scale": scale, "coordinates": 1_000_000}
    honest = details["clients"] - details["dropouts"] - details["colluders"]
    d = sum_divergence(scale, honest) + real_divergence(scale * math.sqrt(honest))
    d *= details["coordinates"]
    assert 1e-3 < d < 1
    gain = math.sqrt(honest - (ROUNDING_SCALE / scale) ** 2)
    by_hand = gaussian_epsilon(DELTA * math.exp(-d), 1 / (2.0 * gain)) + 2 * d
    found = account(whole, DELTA, accountant=details).epsilon.upper
    assert by_hand * (1 - 1e-12) <= found <= by_hand * (1 + 1e-6)

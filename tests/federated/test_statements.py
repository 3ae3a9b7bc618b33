"""Who sees what: the issue's figures, the gain by simulation, and what is not claimed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import forethought as ft
from forethought.accounting.dominating_pair import gaussian_delta
from forethought.accounting.interval import at_most
from forethought.accounting.statement import StatementError
from forethought.accounting.verification import check
from forethought.federated.federation import Federation, FederationError, Member, Robust
from forethought.federated.secure_aggregation.masking import (
    SecureAggregation,
    SecureAggregationError,
)
from forethought.federated.statements import (
    client_statement,
    disjoint,
    gain,
    overview,
    shared,
)
from forethought.values.caveats import Caveat
from forethought.values.mechanism import FullBatch, Mechanism, Persons, Poisson, Rounds
from forethought.values.plan import Clip, Plan, Transcript, TranscriptError
from forethought.values.use import Optimizer, ReleaseUse, Schedule

DELTA, SIZE = 1e-5, 1000


def plan(sigma: float = 4.54, rounds: int = 120, rate: float = 0.2, **options) -> Plan:
    return Plan(Mechanism(Rounds(sigma, rounds, Poisson(rate))), SIZE, DELTA, **options)


def federation(members: int = 10, plans: tuple[Plan, ...] | None = None, **options) -> Federation:
    found = plans or (plan(),)
    return Federation(
        members=tuple(Member(f"site {i}", i % len(found)) for i in range(members)),
        plans=found,
        parameters=options.pop("parameters", 650),
        architecture="",
        rounds=options.pop("rounds", 120),
        exchanged=options.pop("exchanged", "gradients"),
        **options,
    )


def falling(rounds: int) -> Plan:
    """Two levels of noise; the second begins after ``rounds``."""
    first, second = Rounds(4.0, rounds, Poisson(0.2)), Rounds(2.0, 120 - rounds, Poisson(0.2))
    return Plan(Mechanism(first, second), SIZE, DELTA, noise="grid")


# A norm that follows each client's own data, and the noise with it.
COUNTED = Clip(1.0, "quantile", count_noise=20.0)


def released(chosen: Plan, rounds: int) -> Transcript:
    transcript = Transcript()
    for index in range(rounds):
        one = chosen.round(index)
        transcript.append(one, one.noise_std, one.clip_norm)
    return transcript


def test_a_straggler_has_spent_what_its_ledger_released() -> None:
    """120 rounds at a rate of 0.2 are planned for ε = 2; after 13 of them 0.62 is spent."""
    whole = federation()
    assert client_statement(whole, 0).guarantee == pytest.approx(2.00, abs=0.005)
    stopped = client_statement(whole, 0, transcript=released(plan(), 13))
    assert stopped.guarantee == pytest.approx(0.624, abs=0.003)
    assert len(stopped.mechanism) == 13 and stopped.releases[0].count == 13
    check(stopped, plan())
    with pytest.raises(FederationError, match="released nothing"):
        client_statement(whole, 0, transcript=Transcript())
    other = plan(sigma=3.0)
    with pytest.raises(TranscriptError):
        client_statement(whole, 0, transcript=released(other, 13))


def early(one: ft.Statement) -> list[str]:
    return [caveat.detail for caveat in one.assumptions if caveat.code == "ended-early"]


def test_fewer_rounds_than_planned_say_what_all_of_them_have() -> None:
    """A server can end a run when it likes: then the ε of what it released is not enough."""
    whole, part = federation(), released(plan(), 13)
    for view in ("server", "outsider"):
        made = client_statement(whole, 0, view, transcript=part)
        all_of_it = client_statement(whole, 0)  # models that it is missing from hide nothing of it
        assert early(made) == [
            f"epsilon {at_most(all_of_it.guarantee)} of all 120 at delta 1e-05 for one record "
            "(13 were released)"
        ]
        check(made, plan())
        assert not early(all_of_it)
    assert not early(client_statement(whole, 0, transcript=released(plan(), 120)))
    assert not early(client_statement(whole, 0, transcript=part, left=True))
    # Rounds that were never agreed on are not planned.
    assert not early(client_statement(federation(rounds=13), 0, transcript=part))


def test_statements_of_several_clients_say_what_all_planned_rounds_have() -> None:
    whole = federation(3, (plan(), plan(sigma=3.0)))
    parts = [released(whole.plan(k), count) for k, count in enumerate((120, 13, 13))]
    together = shared(whole, 2, transcripts=parts)
    [said] = early(together)
    assert said.startswith(f"epsilon {at_most(shared(whole, 2).guarantee)} of all 360 at ")
    assert said.endswith("(146 were released)")
    each = {f"{k}": client_statement(whole, k, transcript=part) for k, part in enumerate(parts)}
    # That of the one that would have spent most, whoever has spent most.
    assert early(disjoint(each)) == early(each["1"])
    assert early(disjoint({"0": each["0"]})) == early(shared(whole, 2)) == []


@pytest.mark.parametrize(
    "told",
    [
        "epsilon 1.9 of all 120 at delta 1e-05 for one record (13 were released)",
        "epsilon nan of all 120 at delta 1e-05 for one record (13 were released)",
        "epsilon 2.001 of all 120 at delta 0.001 for one record (13 were released)",
        "epsilon 2.001 of all 60 at delta 1e-05 for one record (13 were released)",
        "epsilon 2.001 of all 121 at delta 1e-05 for one record (13 were released)",
        "epsilon 2.001 of all 120 at delta 1e-05 for one record (12 were released)",
        "epsilon 0.6246 of all 13 at delta 1e-05 for one record (13 were released)",
        "most rounds were released",
    ],
)
def test_another_epsilon_of_all_planned_rounds_is_refused(told: str) -> None:
    made = client_statement(federation(), 0, transcript=released(plan(), 13))
    kept = [one for one in made.caveats if one.code != "ended-early"]
    forged = replace(made, caveats=(*kept, Caveat("ended-early", told)))
    with pytest.raises(StatementError, match="statement"):
        check(forged, plan())


def test_a_person_at_several_clients_counts_with_all_records_at_each() -> None:
    """Of T rounds with noise σ and all records in each, g records at each of h clients are one
    Gaussian with mean g·√(h·T)/σ."""
    every = Mechanism(Rounds(20.0, 9, FullBatch()))
    own = [
        Plan(every, SIZE, 1e-3, records_per_person=most, not_covered=[rows], hyperparameters=word)
        for most, rows, word in (
            (3, Caveat("rows-of-persons", "3"), "by hand"),
            (1, "x", "by hand"),
        )
    ]
    whole = federation(3, tuple(own), rounds=9, cadence=30.0, rule="asynchronous", refreshes=1)
    for clients in (1, 2, 3):
        found = shared(whole, clients)
        exact = gaussian_epsilon(3 * math.sqrt(9 * clients) / 20)
        assert found.group == 3 and found.guarantee == pytest.approx(exact, rel=1e-4)
    assert shared(whole, 1).guarantee == client_statement(whole, 0).guarantee
    said = {one.code: one.detail for one in found.caveats}
    assert said["rows-of-persons"] == "3" and said["declared-as"] == "by hand"
    assert {"padded-times", "refresh-times", "stated"} <= set(said) and "not-stated" not in said
    parts = [released(own[k % 2], 3) for k in range(3)]
    [early_one] = early(shared(whole, 2, transcripts=parts))
    assert f"epsilon {at_most(shared(whole, 2).guarantee)} of all 27 " in early_one
    assert "3 records together" in early_one


def test_persons_and_records_do_not_add_up() -> None:
    persons = plan(contribution=Persons(4))
    assert any(one.code == "persons" for one in shared(federation(2, (persons,)), 2).caveats)
    with pytest.raises(FederationError, match="plan all alike"):
        shared(federation(2, (persons, plan())), 2)


def test_a_server_that_stops_at_will_learns_more_than_released_rounds_say() -> None:
    """400 Gaussian rounds of ε 2 at δ = 1e-3. The server stops once the loss exceeds the stated ε
    by 0.4; E[1 − exp(stated − loss)] is then at most the δ of the stated ε.

    The estimate is of one seed, with a standard deviation of 1.3e-4.
    """
    mechanism = ft.plan(examples=1000, budget=ft.Budget(2.0, 1e-3), rounds=400, batch=1000)
    mu = 1 / mechanism.mechanism.rounds[0].noise_multiplier
    generator, runs = np.random.default_rng(1), 40_000
    loss, excess, going = np.zeros(runs), np.zeros(runs), np.ones(runs, dtype=bool)
    for count in range(1, 401):
        loss += mu * mu / 2 + mu * generator.standard_normal(runs)
        over = loss - gaussian_epsilon(mu * math.sqrt(count))
        ends = going & ((over > 0.4) | (count == 400))
        excess[ends] = over[ends]
        going &= ~ends
    assert np.maximum(0, -np.expm1(-excess)).mean() > 1.7e-3


def gaussian_epsilon(mu: float) -> float:
    """The ε of a Gaussian of this shift at δ = 1e-3."""
    low, high = 0.0, 9.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > 1e-3 else (low, middle)
    return high


def test_a_person_at_two_clients_is_composed_and_disjoint_shares_have_a_maximum() -> None:
    whole = federation()
    assert shared(whole, 1).guarantee == client_statement(whole, 0).guarantee
    assert shared(whole, 2).guarantee == pytest.approx(2.92, abs=0.005)
    weaker = federation(4, (plan(), plan(sigma=3.0)))
    each = {f"site {i}": client_statement(weaker, i) for i in range(4)}
    together = disjoint(each)
    assert together.guarantee == max(one.guarantee for one in each.values())
    assert any(one.code == "disjoint-holders" for one in together.assumptions)
    # The worst pair is the two that add less noise.
    pair = plan(sigma=3.0).mechanism + plan(sigma=3.0).mechanism
    assert shared(weaker, 2).guarantee == ft.epsilon(pair, DELTA).upper
    stopped = [released(weaker.plan(i), 5 * i) for i in range(4)]
    assert 0 < shared(weaker, 2, transcripts=stopped).guarantee < shared(weaker, 2).guarantee
    # At different δ the largest holds for all.
    mixed = disjoint({"a": each["site 0"], "b": client_statement(weaker, 1, delta=1e-6)})
    assert (mixed.delta, mixed.guarantee) == (DELTA, together.guarantee)
    pair = federation(2, (plan(), Plan(plan().mechanism, SIZE, 1e-6)))
    assert shared(pair, 2).delta == DELTA
    with pytest.raises(FederationError, match="one adjacency"):
        disjoint({"a": each["site 0"], "b": client_statement(weaker, 1, "outsider")})
    with pytest.raises(FederationError, match="None"):
        disjoint({})


def test_an_outsider_faces_the_noise_of_all_and_a_client_that_of_the_others() -> None:
    whole = federation()
    assert gain(whole, 3) == pytest.approx(math.sqrt(10))
    assert gain(whole, 3, known=1) == pytest.approx(3.0)
    outside = client_statement(whole, 3, "outsider")
    wanted = ft.epsilon(Mechanism(Rounds(4.54 * math.sqrt(10), 120, Poisson(0.2))), DELTA)
    assert outside.guarantee == pytest.approx(wanted.upper, rel=1e-6)
    views = [client_statement(whole, 3, view).guarantee for view in ("outsider", "client")]
    assert views[0] < views[1] < client_statement(whole, 3).guarantee
    check(outside, plan())


def test_the_gain_is_that_of_weighted_sums() -> None:
    """Standard deviations of simulated weighted means; false alarm below 10⁻⁶ at 5 % of 40,000."""
    plans = (plan(2.0), plan(5.0, rate=0.5, clip=Clip(0.5)))
    whole = Federation(
        members=(Member("a", 0, 3.0), Member("b", 1, 1.0), Member("c", 1, 2.0)),
        plans=plans,
        parameters=1,
        architecture="",
        rounds=120,
        exchanged="gradients",
    )
    generator = np.random.default_rng(1)
    noises = []
    for client, share in enumerate(whole.shares):
        one = whole.plan(client).round(0)
        noises.append(share * generator.normal(0, one.noise_std, 40_000) / one.divisor)
    total = np.sum(noises, axis=0)
    for client in range(3):
        assert gain(whole, client) == pytest.approx(total.std() / noises[client].std(), rel=0.05)
    # Of the other two the noisier one is known, then both.
    left = (noises[0] + noises[1]).std() / noises[0].std()
    assert gain(whole, 0, known=1) == pytest.approx(left, rel=0.01)
    assert gain(whole, 0, known=2) == 1.0


def test_where_others_have_stopped_their_noise_is_not_counted() -> None:
    short = plan(rounds=20)
    whole = federation(3, (plan(), short, short))
    assert gain(whole, 0) == 1.0
    assert gain(whole, 1) == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "asynchronous"},
        {"cohort": 5},
        {"deadline": 10.0},
        {"robust": Robust("median")},
        {"exchanged": "weights", "local_rounds": 2, "rounds": 60},
        {
            "exchanged": "weights",
            "plans": (plan(use=ReleaseUse(optimizer=Optimizer("adam", options=()))),),
        },
        {"plans": (plan(clip=Clip(1.0, "quantile", count_noise=100.0)),)},
        # The noise of one fades from round to round, and with it what it hides of the other's.
        {"plans": (plan(), plan(clip=Clip(1.0, final=0.05)))},
        {
            "exchanged": "weights",
            "plans": tuple(
                plan(rate=rate, use=ReleaseUse(schedule=Schedule("inverse", 1e-3, unit="examples")))
                for rate in (0.2, 0.4)
            ),
        },
        # After 60 rounds the step sizes of the longer plan have not fallen as far.
        {
            "exchanged": "weights",
            "rounds": 60,
            "plans": tuple(
                plan(rounds=rounds, use=ReleaseUse(schedule=Schedule("cosine")))
                for rounds in (120, 60)
            ),
        },
        # Two whole numbers can be told from their sum with weights such as 1 and √2.
        {"plans": (plan(noise="grid"),)},
    ],
)
def test_no_gain_where_a_model_is_more_than_one_sum(options: dict) -> None:
    whole = federation(**options)
    assert gain(whole, 0) == 1.0
    outside = client_statement(whole, 0, "outsider")
    assert outside.epsilon == client_statement(whole, 0).epsilon
    assert outside.accountant == {"kind": "exact"}


def test_momentum_of_clients_that_stop_tells_their_past_sums() -> None:
    """Where weights are exchanged, models after a client stopped lack its momentum: no gain."""
    assert gain(federation(3, (plan(), plan(rounds=20)), exchanged="weights"), 0) == 1.0
    assert gain(federation(3, (plan(), plan(rounds=20))), 1) > 1.0


def test_weights_after_one_linear_step_are_as_good_as_gradients() -> None:
    assert gain(federation(exchanged="weights"), 0) == pytest.approx(math.sqrt(10))


def test_leaving_clients_out_does_not_amplify() -> None:
    """The theorem on sampling would claim too little of a record when whole clients are sampled.

    One of two clients takes part, by a fair coin. The other client's sum is far away, so the output
    tells who took part; with the first (chance ½) it is N(0 or 1, σ²). Amplification would turn
    (ε, δ) into (ln(1 + (e^ε − 1)/2), δ/2); the true δ there is ½·δ(ε′) of the plain Gaussian.
    """
    mu, epsilon = 1 / 1.5, 1.0
    amplified = math.log1p(math.expm1(epsilon) / 2)
    claimed = 0.5 * float(gaussian_delta(epsilon, mu))
    true = 0.5 * float(gaussian_delta(amplified, mu))
    assert true > 2 * claimed
    cohort = client_statement(federation(cohort=5), 0)
    assert cohort.epsilon == client_statement(federation(), 0).epsilon
    assert any(one.code == "no-client-amplification" for one in cohort.facts)


def test_secure_aggregation_counts_the_noise_of_honest_clients() -> None:
    secure = SecureAggregation(10, dropouts=2, colluders=2)
    grid = plan(noise="grid")
    whole = federation(plans=(grid,), secure=secure.to_dict())
    found = client_statement(whole, 0, "secure-server")
    wanted = ft.epsilon(Mechanism(Rounds(4.54 * math.sqrt(6), 120, Poisson(0.2))), DELTA)
    assert found.guarantee == pytest.approx(wanted.upper, rel=1e-6)
    assert "floating-point-noise" not in {one.code for one in found.caveats}
    check(found, grid)
    assert client_statement(whole, 0).guarantee == pytest.approx(2.0, abs=0.01)
    with pytest.raises(FederationError, match="no secure aggregation"):
        client_statement(federation(), 0, "secure-server")
    assert "secure-server" in overview(whole)
    # Drop-outs take their noise along from whoever sees the models: eight are left.
    outside = client_statement(whole, 0, "outsider")
    assert outside.accountant["gain"] == pytest.approx(math.sqrt(8))


@pytest.mark.parametrize("view", ["outsider", "client"])
def test_the_roster_s_weights_change_nothing_of_a_masked_sum(view) -> None:
    secure = SecureAggregation(10)
    whole = federation(plans=(plan(noise="grid"),), secure=secure.to_dict())
    # Two, as one may be the other client.
    others = (replace(member, weight=1e4) for member in whole.members[1:3])
    members = (whole.members[0], *others, *whole.members[3:])
    heavy = client_statement(replace(whole, members=members), 0, view)
    assert heavy.epsilon == client_statement(whole, 0, view).epsilon


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exchanged": "weights"}, "exchanged to 'gradients'"),
        ({"robust": Robust("median")}, "single updates"),
        ({"cohort": 9}, "asks 9 clients"),
        ({"plans": (plan(),)}, "noise='grid'"),
        ({"plans": (plan(noise="grid"), plan(sigma=5.0, noise="grid"))}, "one noise multiplier"),
        ({"plans": (falling(60), falling(30))}, "in every round"),
        ({"plans": (falling(60),), "cohort": 10}, "miss rounds"),
        ({"plans": (plan(noise="grid", clip=Clip(1.0, final=0.1)),), "cohort": 10}, "miss rounds"),
        ({"plans": (plan(noise="grid", clip=COUNTED),)}, "'quantile'"),
    ],
)
def test_what_secure_aggregation_does_not_go_with_is_refused(options: dict, words: str) -> None:
    options = {"plans": (plan(noise="grid"),), **options}
    with pytest.raises(SecureAggregationError, match=words):
        SecureAggregation(10).require(federation(**options))


def test_asynchronous_rounds_have_no_secure_sums() -> None:
    with pytest.raises(FederationError, match="synchronous"):
        federation(rule="asynchronous", secure=SecureAggregation(10).to_dict())


def test_the_overview_has_a_row_a_client_and_zero_for_one_that_released_nothing() -> None:
    whole = federation(2)
    rows = overview(whole, [released(plan(), 13), Transcript()]).splitlines()
    assert len(rows) == 4
    assert rows[2].startswith("| site 0 | 13 | 0.62")
    assert rows[3] == "| site 1 | 0 | 0 | 0 | 0 | 1e-05 |"


def test_the_overview_counts_no_noise_that_was_never_added() -> None:
    short = plan(rounds=13)
    whole = federation(4, (short,), rounds=13)
    all_came = [released(short, 13)] * 4
    server, client, outsider = cells(overview(whole, all_came))
    assert outsider < client < server
    assert overview(whole, all_came) == overview(whole)
    left = [released(short, 13), Transcript(), Transcript(), released(short, 12)]
    assert cells(overview(whole, left)) == [server] * 3
    # One that came back has its rounds in other models than those of the same number.
    returned = [*all_came[:3], released(short, 12)]
    for agreed in (whole, replace(whole, exchanged="weights")):
        assert [len(set(cells(overview(agreed, returned), k))) for k in range(4)] == [1] * 4
    # So have all that made each of their rounds, where there are more models than those.
    longer = federation(4, (short,), rounds=20)
    assert len(set(cells(overview(longer, all_came)))) == 1


def cells(table: str, client: int = 0) -> list[float]:
    return [float(cell) for cell in table.splitlines()[2 + client].split(" | ")[2:5]]


def test_who_leaves_by_its_own_will_counts_all_its_rounds() -> None:
    whole, part = federation(3), released(plan(), 13)
    left = client_statement(whole, 0, transcript=part, left=True)
    assert left.guarantee == client_statement(whole, 0).guarantee
    assert [str(one) for one in left.caveats if one.code == "stopped-early"] == [
        "the run was stopped after 13 of 120 rounds; all of them are accounted, whatever decided "
        "when to stop"
    ]
    check(left, plan())
    for made in (
        client_statement(whole, 0, transcript=part),
        client_statement(whole, 0, transcript=released(plan(), 120), left=True),
    ):
        assert "stopped-early" not in {one.code for one in made.caveats}

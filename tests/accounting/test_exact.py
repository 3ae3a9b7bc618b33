"""ε and δ as certified intervals: every cell, and what must hold between answers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from forethought.accounting import exact, theorems
from forethought.accounting.accountants import batches_known
from forethought.accounting.dominating_pair import Pair, gaussian_delta_bounds
from forethought.accounting.exact import delta, epsilon, epsilon_curve, privacy_loss
from forethought.accounting.line_integral import Curve, Profile
from forethought.values.mechanism import (
    ADJACENCIES,
    CLIPPINGS,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    UnsupportedMechanismError,
    WithoutReplacement,
)

SAMPLINGS = [
    Poisson(0.01),
    WithoutReplacement(10, 1000),
    Shuffled(10, 1000),
    RandomAllocation(20),
    CyclicPoisson(0.1, 10),
    FullBatch(),
]


@pytest.mark.parametrize(
    ("sampling", "clipping", "adjacency"),
    [
        pytest.param(*cell, marks=pytest.mark.slow if cell[0] == RandomAllocation(20) else ())
        for cell in itertools.product(SAMPLINGS, CLIPPINGS, ADJACENCIES)
    ],
    ids=str,
)
@pytest.mark.parametrize("group", [1, 3])
def test_every_cell_is_computed_with_a_theorem_or_refused_with_a_reason(
    sampling, clipping, adjacency, group
):
    key = (sampling.kind, clipping, adjacency)
    rounds = Rounds(2.0, 50, sampling, clipping)
    if adjacency in sampling.refused:
        assert key not in theorems.SUPPORTED
        with pytest.raises(UnsupportedMechanismError, match="Poisson"):
            epsilon(Mechanism(rounds, adjacency=adjacency), 1e-6, group)
        with pytest.raises(UnsupportedMechanismError, match=sampling.refused[adjacency][:20]):
            theorems.theorem(rounds, adjacency)
        return
    assert theorems.theorem(rounds, adjacency, group)
    got = epsilon(Mechanism(rounds, adjacency=adjacency), 1e-6, group)
    assert 0 < got.lower <= got.upper < math.inf
    assert got.relative_width <= (5e-3 if sampling.kind == "random-allocation" else 1e-3)


def test_parts_in_turns_are_the_rounds_of_the_part_that_has_most():
    """A record of the first part is in 3 of 21 rounds of 10 parts: three Poisson rounds."""
    for adjacency in ADJACENCIES:
        turns = Mechanism(Rounds(1.5, 21, CyclicPoisson(0.2, 10)), adjacency=adjacency)
        rounds = Mechanism(Rounds(1.5, 3, Poisson(0.2)), adjacency=adjacency)
        for group in (1, 4):
            assert epsilon(turns, 1e-5, group) == epsilon(rounds, 1e-5, group)


def test_a_group_split_over_parts_is_safer_than_one_in_a_single_part():
    """Two records in one part, each present with chance q: against one in each of two parts."""
    rate, sigma, eps = 0.3, 1.0, 0.7
    together = delta(Mechanism(Rounds(sigma, 2, CyclicPoisson(rate, 2))), eps, 2).lower
    # Apart: each part is a Poisson round of one record, and both are composed.
    apart = delta(Mechanism(Rounds(sigma, 2, Poisson(rate))), eps).upper
    assert apart < together


def _simulated_delta(mechanism: Mechanism, at: float, draw, count: int = 400_000) -> float:
    rng = np.random.default_rng(7)
    total = sum(draw(rng, count) for _ in range(len(mechanism)))
    return float(np.mean(np.maximum(0.0, -np.expm1(at - total))))


@pytest.mark.parametrize("swapped", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rounds", "adjacency", "group"),
    [
        (Rounds(1.0, 3, Poisson(0.2)), "add-or-remove", 1),
        (Rounds(1.0, 3, Poisson(0.2)), "replace-one", 1),
        (Rounds(2.0, 3, Poisson(0.2), "group"), "zero-out", 1),
        (Rounds(2.0, 2, Poisson(0.3)), "add-or-remove", 3),
        (Rounds(2.0, 2, Poisson(0.3)), "replace-one", 2),
        (Rounds(2.0, 3, WithoutReplacement(20, 100)), "add-or-remove", 1),
        (Rounds(3.0, 2, WithoutReplacement(20, 100)), "add-or-remove", 2),
    ],
    ids=str,
)
def test_the_losses_of_each_pair_simulate_to_its_profile(rounds, adjacency, group, swapped):
    # False alarm: 5 standard errors of a mean of values in [0, 1], 1e-6 for each case.
    (pair,) = theorems.parts(Mechanism(rounds, adjacency=adjacency), group)

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        def mixture(parts, sign):
            shifts = [0.0, *(sign * c for c, _ in parts)]
            weights = [1 - sum(w for _, w in parts), *(w for _, w in parts)]
            weights = np.maximum(weights, 0)
            return rng.choice(shifts, size=count, p=weights / weights.sum()), shifts, weights

        up, up_shifts, up_weights = mixture(pair.up, 1)
        down, down_shifts, down_weights = mixture(pair.down, -1)
        z = rng.standard_normal(count) + (down if swapped else up)
        log_p = np.log(sum(w * norm.pdf(z - c) for c, w in zip(up_shifts, up_weights, strict=True)))
        log_q = np.log(
            sum(w * norm.pdf(z - c) for c, w in zip(down_shifts, down_weights, strict=True))
        )
        return log_q - log_p if swapped else log_p - log_q

    curves = privacy_loss(Mechanism(rounds, adjacency=adjacency), group)
    below, above = curves[-1 if swapped else 0]
    for at in (-0.5, 0.0, 0.3, 1.0):
        got = _simulated_delta(Mechanism(rounds), at, draw)
        error = 5 * math.sqrt(max(got, 1e-5) / 400_000) + 1e-6
        assert below.delta(at) - error <= got <= above.delta(at) + error


def _two_fold(shift: float, rate: float, at: float) -> float:
    """δ of two rounds of the symmetrised curve, by integrating over the first round's loss."""

    def profile(level: float) -> float:
        if level < 0:
            return 1 - math.exp(level) + math.exp(level) * profile(-level)
        inner = math.log1p(math.expm1(level) / rate)
        return rate * (
            norm.cdf(shift / 2 - inner / shift)
            - math.exp(inner) * norm.cdf(-shift / 2 - inner / shift)
        )

    z0 = shift / 2

    def loss(z: float) -> float:
        return math.log1p(rate * math.expm1(shift * z - shift * shift / 2))

    def integrand(z: float) -> float:
        p = (1 - rate) * norm.pdf(z) + rate * norm.pdf(z - shift)
        return p * profile(at - loss(z)) + norm.pdf(z) * profile(at + loss(z))

    p_above = (1 - rate) * norm.sf(z0) + rate * norm.cdf(z0)
    atom = 1 - p_above - norm.sf(z0)
    return quad(integrand, z0, z0 + 14, epsabs=1e-13, limit=400)[0] + atom * profile(at)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds",
    [
        Rounds(2.0, 2, WithoutReplacement(25, 100)),
        Rounds(3.0, 2, WithoutReplacement(10, 1000)),
        Rounds(1.5, 2, Poisson(0.1), "group"),
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [0.0, 0.2, 1.0])
def test_two_rounds_of_the_combined_curve_equal_the_integral(rounds, at):
    truth = _two_fold(2 / rounds.noise_multiplier, rounds.sampling.rate, at)
    got = delta(Mechanism(rounds, adjacency="replace-one"), at)
    # The integral itself is good to 1e-12.
    assert got.lower - 1e-12 <= truth <= got.upper + 1e-12


def test_real_sampling_without_replacement_loses_no_more_than_promised():
    # Ten records at 0 but one that is replaced, +1 by -1; then others at the opposite end. The
    # exact output distribution is a mixture, so δ is an integral, with no sampling error.
    batch, examples, sigma = 3, 10, 1.2
    rate = batch / examples
    z = np.linspace(-20, 20, 40_001)
    for others in (0.0, 1.0, -1.0):
        rest, hit = batch * others, (batch - 1) * others
        p = (1 - rate) * norm.pdf(z, rest, sigma) + rate * norm.pdf(z, hit + 1, sigma)
        q = (1 - rate) * norm.pdf(z, rest, sigma) + rate * norm.pdf(z, hit - 1, sigma)
        for at in (0.0, 0.3, 1.0):
            truth = np.maximum(0, p - math.exp(at) * q).sum() * (z[1] - z[0])
            mechanism = Mechanism(
                Rounds(sigma, 1, WithoutReplacement(batch, examples)), adjacency="replace-one"
            )
            # Riemann sums of a function with a kink: 1e-7 of error.
            assert truth <= delta(mechanism, at).upper + 1e-7


@pytest.mark.parametrize("angle", np.linspace(0, math.pi, 7))
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (1.0, 0.5), (0.7, 1.0)])
def test_opposite_replacements_are_the_worst_in_the_plane(angle, lengths):
    # Poisson sampling under replace-one: centres 0, a, b in the plane, by quadrature.
    rate, sigma = 0.3, 0.8
    x, y = np.meshgrid(np.linspace(-7, 7, 701), np.linspace(-7, 7, 701))
    area = (x[0, 1] - x[0, 0]) ** 2

    def density(u: float, v: float) -> np.ndarray:
        return np.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * sigma**2)) / (2 * np.pi * sigma**2)

    idle = (1 - rate) * density(0, 0)
    p = idle + rate * density(lengths[0], 0)
    q = idle + rate * density(lengths[1] * math.cos(angle), lengths[1] * math.sin(angle))
    promised = Mechanism(Rounds(sigma, 1, Poisson(rate)), adjacency="replace-one")
    for at in (0.0, 0.4, 1.5):
        truth = np.maximum(0, p - math.exp(at) * q).sum() * area
        upper = delta(promised, at).upper
        assert truth <= upper * (1 + 3e-4)  # the plane's grid
        if lengths == (1.0, 1.0) and angle == math.pi:
            assert truth == pytest.approx(upper, rel=2e-3)


def test_no_noise_is_no_privacy():
    mechanism = Mechanism(Rounds(0.0, 1, Poisson(0.5)), Rounds(1.0, 5, Poisson(0.5)))
    assert epsilon(mechanism, 1e-5).lower == math.inf
    assert delta(mechanism, 3.0).upper == 1.0
    with pytest.raises(ValueError, match="privacy loss distribution"):
        privacy_loss(mechanism)


def test_order_of_rounds_leaves_no_trace():
    some = [Rounds(1.0, 7, Poisson(0.1)), Rounds(2.0, 3, FullBatch()), Rounds(1.5, 9, Poisson(0.1))]
    answers = {epsilon(Mechanism(*order), 1e-5) for order in itertools.permutations(some)}
    assert len(answers) == 1
    again = Mechanism(some[0], some[2], some[0], some[1], some[2])
    merged = Mechanism(Rounds(1.0, 14, Poisson(0.1)), Rounds(1.5, 18, Poisson(0.1)), some[1])
    assert epsilon(again, 1e-5) == epsilon(merged, 1e-5)


def test_epsilon_and_delta_invert_each_other():
    mechanism = Mechanism(Rounds(1.1, 1000, Poisson(0.01)))
    spent = epsilon(mechanism, 1e-6, accuracy=1e-4)
    assert delta(mechanism, spent.upper).lower <= 1e-6 * (1 + 1e-3)
    assert delta(mechanism, spent.lower).upper >= 1e-6 * (1 - 1e-3)


def test_the_curve_over_rounds_is_epsilon_of_every_prefix():
    mechanism = Mechanism(Rounds(1.1, 50, Poisson(0.05)), Rounds(0.9, 50, Poisson(0.05)))
    curve = epsilon_curve(mechanism, 1e-5, [0, 10, 50, 75, 100])
    assert curve[0].upper == 0
    uppers = [interval.upper for interval in curve]
    assert uppers == sorted(uppers)
    for count, interval in zip([10, 50, 75, 100], curve[1:], strict=True):
        fine = epsilon(mechanism.first(count), 1e-5)
        assert interval.lower <= fine.upper and fine.lower <= interval.upper


def test_the_distribution_holds_on_the_whole_line():
    mechanism = Mechanism(Rounds(1.0, 100, Poisson(0.05)))
    for below, above in privacy_loss(mechanism):
        levels = np.linspace(-6, 6, 25)
        low = np.array([below.delta(x) for x in levels])
        high = np.array([above.delta(x) for x in levels])
        assert (low <= high).all()
        assert (np.diff(high) <= 0).all()
        assert (high - low).max() < 1e-3
    best = max(above.epsilon(1e-5) for _, above in privacy_loss(mechanism))
    assert best == pytest.approx(epsilon(mechanism, 1e-5).upper, rel=2e-3)


@settings(max_examples=12, deadline=None)
@given(
    rate=st.floats(1e-3, 0.9),
    sigma=st.floats(0.5, 20),
    rounds=st.integers(1, 2000),
    adjacency=st.sampled_from(ADJACENCIES),
)
def test_epsilon_falls_with_noise_and_grows_with_rounds_rate_and_group(
    rate, sigma, rounds, adjacency
):
    def spent(sigma=sigma, rounds=rounds, rate=rate, group=1):
        mechanism = Mechanism(Rounds(sigma, rounds, Poisson(rate)), adjacency=adjacency)
        return epsilon(mechanism, 1e-6, group, accuracy=1e-2)

    base = spent()
    assert spent(sigma=1.2 * sigma).lower <= base.upper
    for more in (spent(rounds=2 * rounds), spent(rate=min(1, 1.3 * rate)), spent(group=2)):
        assert more.upper >= base.lower


@settings(max_examples=12, deadline=None)
@given(
    rate=st.floats(1e-3, 0.9),
    sigma=st.floats(0.5, 20),
    rounds=st.integers(1, 2000),
    delta=st.floats(1e-10, 1e-3),
)
def test_intervals_nest_when_accuracy_tightens(rate, sigma, rounds, delta):
    mechanism = Mechanism(Rounds(sigma, rounds, Poisson(rate)))
    coarse, fine = (epsilon(mechanism, delta, accuracy=a) for a in (3e-2, 1e-3))
    assert coarse.lower <= fine.lower + 1e-12
    assert fine.upper <= coarse.upper + 1e-12


@pytest.mark.parametrize(
    "wanted", [1e-5, *(pytest.param(x, marks=pytest.mark.slow) for x in (1e-15, 0.3, 0.999))]
)
@pytest.mark.parametrize(
    "rounds",
    [
        Rounds(0.2, 1, Poisson(1e-8)),
        Rounds(0.2, 10, Poisson(0.5)),
        Rounds(1e5, 10, Poisson(0.5)),
        Rounds(1e5, 1, FullBatch()),
        Rounds(5.0, 10_000_000, Poisson(1e-4)),
        Rounds(1.0, 1, Poisson(1e-8)),
        Rounds(0.5, 50, WithoutReplacement(1, 10**4)),
    ],
    ids=str,
)
def test_extreme_parameters_give_ordered_finite_bounds(rounds, wanted):
    adjacency = (
        "replace-one" if isinstance(rounds.sampling, WithoutReplacement) else "add-or-remove"
    )
    mechanism = Mechanism(rounds, adjacency=adjacency)
    got = epsilon(mechanism, wanted)
    assert 0 <= got.lower <= got.upper < math.inf
    back = delta(mechanism, got.upper)
    assert 0 <= back.lower <= back.upper <= 1
    assert back.lower <= wanted


def _of_large_epsilon(number: int) -> tuple[Mechanism, float]:
    """Little noise and a tiny δ, from whole numbers and powers of ten: ε is above 700."""
    draw = np.random.default_rng([700, number])
    sigma, count = int(draw.integers(20, 150)) / 1000, int(draw.integers(2, 150))
    rate = int(draw.integers(1, 10)) * 10.0 ** -int(draw.integers(1, 6))
    adjacency = ("add-or-remove", "zero-out", "replace-one")[int(draw.integers(3))]
    mechanism = Mechanism(Rounds(sigma, count, Poisson(rate)), adjacency=adjacency)
    return mechanism, 10.0 ** -int(draw.integers(5, 200))


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("mechanism", "wanted"),
    [
        (Mechanism(Rounds(1 / 16, 111, Poisson(2e-5)), adjacency="replace-one"), 1e-151),
        *map(_of_large_epsilon, (2, 13, 27, 35, 49, 53)),
    ],
)
def test_delta_undoes_an_epsilon_whose_power_of_e_is_no_number(mechanism, wanted):
    found = epsilon(mechanism, wanted)
    assert 700 < found.lower <= found.upper < math.inf
    above, below = delta(mechanism, found.lower), delta(mechanism, found.upper)
    assert below.lower <= wanted * (1 + 1e-9)
    assert above.upper >= wanted * (1 - 1e-9)


@pytest.mark.slow
def test_bounds_at_an_epsilon_in_the_hundred_thousands_do_not_cross():
    few, sampling = Rounds(0.0174, 10, Poisson(0.9999)), WithoutReplacement(1, 3)
    mechanism = Mechanism(few, Rounds(0.1133, 1000, sampling, "group"), adjacency="replace-one")
    found = epsilon(mechanism, 1e-300)
    assert delta(mechanism, found.upper).lower <= 1e-300


def test_arguments_are_refused_in_the_users_words():
    mechanism = Mechanism(Rounds(1.0, 1, FullBatch()))
    with pytest.raises(ValueError, match="delta must be"):
        epsilon(mechanism, 0.0)
    with pytest.raises(ValueError, match="epsilon must be"):
        delta(mechanism, -1.0)
    with pytest.raises(ValueError, match="group must be"):
        epsilon(mechanism, 1e-5, 0)
    with pytest.raises(TypeError, match="mechanism must be"):
        epsilon(3, 1e-5)
    with pytest.raises(ValueError, match="accuracy"):
        exact.epsilon(mechanism, 1e-5, accuracy=1.0)


def test_one_group_makes_several_records_one():
    # All records of a batch are in one update: five of them act as one that is in if any is.
    rate = 0.02
    any_of_five = 1 - (1 - rate) ** 5
    for adjacency in ("add-or-remove", "zero-out", "replace-one"):

        def made(rate, groups, adjacency=adjacency):
            part = Rounds(3.0, 200, Poisson(rate), "group", groups=groups)
            return Mechanism(part, adjacency=adjacency)

        five = epsilon(made(rate, 1), 1e-6, 5)
        one = epsilon(made(any_of_five, None), 1e-6)
        assert five.lower == pytest.approx(one.lower, rel=1e-6)
        assert five.upper == pytest.approx(one.upper, rel=1e-6)
        assert five.upper < 0.95 * epsilon(made(rate, None), 1e-6, 5).lower
        assert five.upper < epsilon(made(rate, 2), 1e-6, 5).lower


def test_records_of_several_parts_and_epochs_are_in_several_groups():
    # Batch clipping, whole parts: three records of one part move its update by 2, those of three
    # parts move three updates.
    turns = Mechanism(Rounds(5.0, 4, CyclicPoisson(1.0, 4), "group", groups=1))
    epoch = Mechanism(Rounds(5.0, 4, Shuffled(10, 40), "group", groups=1), adjacency="replace-one")
    for mechanism in (turns, epoch, batches_known(epoch)):
        assert epsilon(mechanism, 1e-5, 3).upper == pytest.approx(
            epsilon(Mechanism(Rounds(5.0, 3, FullBatch(), "group")), 1e-5).upper, rel=1e-9
        )
        assert epsilon(mechanism, 1e-5, 9).upper == pytest.approx(
            epsilon(Mechanism(Rounds(5.0, 4, FullBatch(), "group")), 1e-5).upper, rel=1e-9
        )
    # Whoever knows the batches knows the parts: charged as if all were moved together.
    known = epsilon(batches_known(turns), 1e-5, 3).lower
    assert known >= epsilon(turns, 1e-5, 3).lower


def test_a_chain_at_a_level_whose_power_of_e_is_no_number_proves_no_less_than_it_must():
    # One change is a Gaussian at distance 1000, and two are one at 2000: ε of half a chance is 2e6.
    one = [Profile({Pair(((1000.0, 1.0),)): 1}, swapped=False).bound]
    curves = [(Curve(one, one, above=False), Curve(one, one, above=True))]
    chain = exact.Chained(curves, 2, exchanged=False)
    for level in (1.9e6, 2e6, 2.05e6):
        assert chain.bound(level, 1) >= gaussian_delta_bounds(2000.0, level).lower
        assert chain.bound(level, 0) <= chain.bound(level, 1)


def test_a_dozen_rounds_of_one_rate_are_as_sharp_as_equal_ones():
    rounds = [Rounds(3.43 * 1.3 ** (i / 11), 1, Poisson(0.5)) for i in range(12)]
    found = epsilon(Mechanism(*rounds), 1e-5)
    assert found.relative_width < 1e-3 and found.reason is None
    least, most = (epsilon(Mechanism(Rounds(s, 12, Poisson(0.5))), 1e-5) for s in (4.46, 3.43))
    assert least.upper < found.lower < found.upper < most.lower

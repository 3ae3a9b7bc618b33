import math

import numpy as np
import pytest

from forethought.accounting.dominating_pair import gaussian_epsilon
from forethought.accounting.exact import epsilon as exact_epsilon
from forethought.papers.strong_adversary import SquaredHits, StrongAdversary, paper_occupancy
from forethought.values.mechanism import Mechanism, Poisson, Rounds, UnsupportedMechanismError

ERRATUM = StrongAdversary(60000, 20, 16.0, groups=256, sampling="subsampling")


def bounds(run):
    return {bound.name: bound for bound in run.paper_bounds()}


def test_erratum_001_3_theorem_e1_is_violated():
    assert ERRATUM.paper_sigma == 8
    assert ERRATUM.epsilon(1e-5).upper == pytest.approx(2.4596, abs=5e-5)
    claim = bounds(ERRATUM)["Theorem E.1, g = 1 (Lemmas E.2 and E.3), lower bound"]
    assert claim.curve.epsilon(1e-5) == pytest.approx(2.4522, abs=5e-5)
    assert claim.verdict == "refuted"
    assert claim.exact_delta > claim.claimed_delta
    # The tails said to weigh e^−20 weigh a fifth.
    tail = ERRATUM.hits.weights[ERRATUM.hits.squares > (1 + 1 / math.sqrt(40)) * 20].sum()
    assert 0.2 < tail < 0.27


def test_erratum_001_4_printed_occupancy_is_refuted():
    printed = paper_occupancy(20, 4)
    assert printed.weights == pytest.approx([0.0023, 0.0644, 0.3862, 0.5472], abs=1e-4)
    run = StrongAdversary(1000, 1, 4.0, group_size=50, group=4)
    found = bounds(run)
    name = "Theorem F.1, batch clipping, mixture with the printed q_j (Lemma F.4)"
    assert found[name].verdict == "refuted"
    root = found["Theorem F.1, batch clipping, G_{√(gE)/σ} (Lemma F.4)"]
    assert root.verdict == "reproduced"
    assert root.curve.epsilon(1e-5) == pytest.approx(gaussian_epsilon(1e-5, math.sqrt(4) / 2))


def test_erratum_001_5_standard_analysis_is_far_below():
    mechanism = Mechanism(Rounds(16.0, 4688, Poisson(256 / 60000)), adjacency="replace-one")
    ordinary = exact_epsilon(mechanism, 1e-5)
    assert ordinary.upper < 0.25
    one = Mechanism(Rounds(16.0, 4688, Poisson(256 / 60000)))
    assert exact_epsilon(one, 1e-5).upper < 0.12


@pytest.mark.slow
def test_shuffling_one_record_is_one_gaussian_an_epoch():
    for groups, size in ((256, 1), (1, 256), (16, 16)):
        run = StrongAdversary(60000, 20, 16.0, groups, size)
        assert gaussian_epsilon(1e-5, math.sqrt(20) / 8) in run.epsilon(1e-5)
        verdicts = {bound.verdict for bound in run.paper_bounds()}
        assert verdicts == {"reproduced"}


def test_zero_out_halves_the_shift_of_individual_clipping_only():
    one = StrongAdversary(1000, 2, 4.0, 10, 1, adjacency="zero-out")
    assert gaussian_epsilon(1e-5, math.sqrt(2) / 4) in one.epsilon(1e-5)
    batch = StrongAdversary(1000, 2, 4.0, 1, 10, adjacency="zero-out")
    assert gaussian_epsilon(1e-5, math.sqrt(2) / 2) in batch.epsilon(1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("sampling", ["shuffling", "subsampling"])
@pytest.mark.parametrize(("groups", "size"), [(20, 1), (1, 20), (5, 4)])
def test_delta_agrees_with_simulated_dealing(sampling, groups, size):
    """Mean over dealt runs; five standard errors, false alarm about 1e-6."""
    from forethought.accounting.dominating_pair import gaussian_delta

    run = StrongAdversary(200, 2, 5.0, groups, size, sampling, group=6)
    random = np.random.default_rng(11)
    values = []
    for _ in range(2000 if sampling == "shuffling" else 200):
        square = 0
        for _ in range(run.epochs if sampling == "shuffling" else run.rounds):
            places = random.choice(200, 6, replace=False)
            at, inside = np.divmod(places, groups * size)
            if sampling == "subsampling":
                inside, at = inside[at == 0], at[at == 0]
            boxes = np.unique(np.stack([at, inside // size]), axis=1)
            square += np.sum(np.unique(boxes[0], return_counts=True)[1] ** 2)
        values.append(float(gaussian_delta(1.0, math.sqrt(square) * 2 / 5)))
    ends = run.delta(1.0)
    error = 5 * np.std(values) / math.sqrt(len(values)) + 1e-12
    assert ends.lower - error <= np.mean(values) <= ends.upper + error


def test_tradeoff_and_epsilon_agree():
    run = StrongAdversary(1000, 3, 6.0, 4, 5, group=8)
    f = run.tradeoff()
    ends = run.epsilon(1e-6)
    assert ends.lower <= f.epsilon(1e-6) <= ends.upper * (1 + 1e-6)
    assert ends.relative_width < 1e-6
    assert f(0.0) == pytest.approx(1)
    assert f.gaussian_mu() < math.inf


def test_epsilon_grows_with_the_group_and_falls_with_noise():
    values = [
        StrongAdversary(1000, 2, 8.0, 4, 5, group=g).epsilon(1e-6).upper for g in (1, 2, 5, 9)
    ]
    assert values == sorted(values)
    louder = StrongAdversary(1000, 2, 16.0, 4, 5, group=9).epsilon(1e-6).upper
    assert louder < values[-1]


def test_what_has_no_bound_is_refused():
    with pytest.raises(UnsupportedMechanismError, match="moves every later"):
        StrongAdversary(100, 1, 1.0, adjacency="add-or-remove")
    with pytest.raises(ValueError, match="than the 100"):
        StrongAdversary(100, 1, 1.0, groups=101)


def test_what_is_cut_from_the_hits_counts_as_disclosed():
    run = StrongAdversary(1000, 10, 2.0, 4, 5, group=8)
    run.__dict__["hits"] = SquaredHits(np.array([0.0]), np.array([1.0]), 0.01)
    alpha = np.array([1e-4, 0.1, 0.5])
    assert np.all(run.tradeoff()(alpha) <= 0.99 * (1 - alpha) + 1e-9)
    assert run.delta(3.0).upper >= 0.01


@pytest.mark.parametrize("delta", [1e-20, 1e-300])
def test_a_delta_below_what_is_cut_has_a_lower_end_only(delta):
    adversary = StrongAdversary(1_000_000, 3, 1.0, groups=100, sampling="subsampling")
    found = adversary.epsilon(delta)
    assert adversary.epsilon(1e-9).upper < found.lower < found.upper == math.inf


def test_lemmas_f3_and_f4_speak_of_several_epochs():
    # One epoch of F.4's upper envelope, composed, is a limit that the exact curve keeps.
    run = StrongAdversary(10_000, 3, 4.0, group_size=50, group=2)
    above = bounds(run)["Theorem F.1, batch clipping, upper bound (Lemma F.4)"]
    assert above.verdict == "reproduced"
    exact = run.epsilon(1e-3).lower
    assert 0.95 * exact < above.curve.epsilon(1e-3) < exact
    mixed = StrongAdversary(100_000, 3, 4.0, groups=4, group_size=2, group=2)
    below = bounds(mixed)["Theorem F.1, general clipping, 3 epochs (Lemma F.3)"]
    assert below.verdict == "reproduced"
    assert below.curve.epsilon(1e-2) > mixed.epsilon(1e-2).upper
    # Its tail counts in every epoch: 1 − (1 − g²ms/(N − g))³ is never hidden.
    missed = 1 - (1 - 4 * 8 / 99_998) ** 3
    assert below.curve.delta(60.0) == pytest.approx(missed, rel=1e-6)


@pytest.mark.parametrize("noise", [1e-300, 1e-8, 2.0, 1e8])
@pytest.mark.parametrize("epsilon", [0.0, 1e17, 1e160, 1e308])
def test_delta_is_an_interval_at_any_noise_and_epsilon(noise, epsilon):
    found = StrongAdversary(10, 2, noise).delta(epsilon)
    assert 0 <= found.lower <= found.upper <= 1
    assert (found.lower > 0.9) == (noise < 1 and math.sqrt(epsilon) < 1 / noise)

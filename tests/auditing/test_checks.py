"""Each check on sound runs of every kind, and on numbers and batches that are not.

False-alarm rate: a sound run is judged at 1e-6 a finding.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import forethought as ft
from forethought.auditing import noise, participation, sensitivity
from forethought.auditing.canaries import LEVELS, CheckSizes, sizes_of
from forethought.auditing.verdict import Finding
from forethought.errors import SlowGradientsWarning
from forethought.values.mechanism import Sampling
from forethought.values.plan import Plan

QUICK, LEVEL = LEVELS["quick"], 1e-6
# Every test's level is exact for any number of records and rounds.
QUICKER = replace(QUICK, hits=2_000, coordinates=20_000)


def plan(sampling: Sampling, adjacency: str = "zero-out", **options: object) -> Plan:
    kind = "group" if "groups" in options else "example"
    part = ft.Rounds(1.0, 20, sampling, kind)
    return Plan(ft.Mechanism(part, adjacency=adjacency), 400, 1e-5, **options)


BANDS = ft.Banded((1.0, 0.6, 0.4, 0.2))


def correlated(sampling: Sampling) -> Plan:
    part = ft.Correlated(1.0, 20, sampling, strategy=BANDS)
    return Plan(ft.Mechanism(part, adjacency="zero-out"), 400, 1e-5)


SOUND = {
    "poisson": plan(ft.Poisson(0.1)),
    "poisson at rate 1": plan(ft.Poisson(1.0)),
    "without replacement": plan(ft.WithoutReplacement(40, 400)),
    "shuffled": plan(ft.Shuffled(45, 400)),
    "random allocation": plan(ft.RandomAllocation(10)),
    "parts in turns": plan(ft.CyclicPoisson(0.5, 4)),
    "correlated, sampled turns": correlated(ft.CyclicPoisson(0.5, 4)),
    "correlated, whole parts": correlated(ft.CyclicPoisson(1.0, 4)),
    "one batch an epoch": plan(ft.Shuffled(400, 400)),
    "full batch": plan(ft.FullBatch()),
    "groups": plan(ft.Poisson(0.1), groups=3),
    "batch clipping": plan(ft.Poisson(0.1), groups=1),
    "automatic": plan(ft.Poisson(0.1), clip=ft.Clip(0.3, "automatic")),
    "per layer, with shares": plan(
        ft.Poisson(0.1), clip=ft.Clip(1.0, "per-layer", shares=(("a", 0.6), ("b", 0.8)))
    ),
    "a norm that falls": plan(ft.Poisson(0.1), clip=ft.Clip(1.0, final=0.2)),
    "grid noise": plan(ft.Poisson(0.1), noise="grid"),
    "quantile": plan(ft.Poisson(0.1), clip=ft.Clip(1.0, "quantile", count_noise=5.0)),
}


def refuting(found: list[Finding]) -> list[str]:
    return [finding.reason for finding in found if finding.refutes(LEVEL)]


# The audit's self-test, which CI runs, audits sound runs of the same kinds.
LONGER = (pytest.mark.slow, pytest.mark.repeated)


@pytest.mark.thinned
@pytest.mark.parametrize("size", [QUICKER, pytest.param(QUICK, marks=LONGER)])
@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_pass_the_dry_run_and_the_noise(name: str, size: CheckSizes) -> None:
    source = np.random.default_rng()
    assert refuting(participation.participation(SOUND[name], size, source)) == []
    found = noise.noise(SOUND[name], size, source)
    assert refuting(found) == []
    assert len(found) >= 5


@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize("groups", [None, 1, 3])
def test_planted_neighbours_come_close_to_what_is_accounted(
    adjacency: str, groups: int | None
) -> None:
    options = {} if groups is None else {"groups": groups}
    found = plan(ft.Poisson(0.1), adjacency, **options)
    claimed = sensitivity.claimed_distance(found)
    assert claimed == pytest.approx(2 if groups or adjacency == "replace-one" else 1)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        # The library gives a hundredth of C away for rounding.
        assert 0.98 * claimed < sensitivity.planted_distance(found) <= claimed
    slow = [each for each in heard if each.category is SlowGradientsWarning]
    assert not slow  # in blocks, as in a run


def test_rounds_without_noise_claim_none() -> None:
    part = ft.Rounds(0.0, 3, ft.Poisson(0.1))
    (found,) = noise.noise(Plan(ft.Mechanism(part), 50, 1e-5), QUICK, np.random.default_rng())
    assert not found.refutes(LEVEL)


def test_another_correlation_than_the_claimed_one_is_refuted() -> None:
    """A lag left out, another coefficient, none at all: dependence between rounds, by name."""
    part = ft.Correlated(1.0, 8, ft.FullBatch(), strategy=BANDS)
    claim = ft.Mechanism(part)
    independent = np.random.default_rng(5).standard_normal((8, 20_000))

    def made_with(*coefficients: float) -> list[Finding]:
        other = ft.Correlated(1.0, 8, ft.FullBatch(), strategy=ft.Banded(coefficients))
        rows = list(noise.correlated(other, independent))
        return noise.noise_findings(noise.whitened(claim, rows))

    assert refuting(made_with(1.0, 0.6, 0.4, 0.2)) == []
    for coefficients in ((1.0, 0.6, 0.4), (1.0, 0.6, 0.35, 0.2), (1.0,)):
        names = [f.name for f in made_with(*coefficients) if f.refutes(LEVEL)]
        assert "independence of rounds" in names or "width" in names


def numbers(rounds: int = 8, length: int = 20_000, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((rounds, length)))


def test_gaussian_numbers_pass() -> None:
    assert refuting(noise.noise_findings(numbers())) == []


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (lambda z: [0.98 * row for row in z], "width"),
        (lambda z: [row + 0.02 for row in z], "width"),
        (lambda z: [np.clip(row, -3, 3) for row in z], "distribution"),
        (lambda z: [z[0], *z[:-1]], "numbers that occur again"),
        (lambda z: [row + 0.05 * z[0] for row in z], "independence of rounds"),
        (lambda z: [row + 0.05 * np.roll(row, 8) for row in z], "independence of coordinates"),
        (lambda z: [0 * row for row in z], "width"),
    ],
)
def test_what_is_not_gaussian_noise_is_refuted_by_name(fault: object, name: str) -> None:
    found = noise.noise_findings(fault(numbers()))  # type: ignore[operator]
    assert name in [finding.name for finding in found if finding.refutes(LEVEL)]


def test_numbers_on_a_grid_may_agree_but_not_in_a_row() -> None:
    rounded = [np.round(row, 2) for row in numbers()]
    assert refuting(noise.noise_findings(rounded, grid=True)[:1]) == []
    again = [rounded[0], *rounded[:-1]]
    assert refuting(noise.noise_findings(again, grid=True)[:1])


def test_what_is_not_dealt_out_is_refuted() -> None:
    """Batches of equal size are shuffled, not allocated; a part at another rate; a part left."""
    source = np.random.default_rng(1)
    orders = [source.permutation(600).reshape(10, 60) for _ in range(40)]
    shuffled = [batch for order in orders for batch in order]
    found = participation.sampling_findings(ft.RandomAllocation(10), shuffled, 600, source)
    assert "sizes of batches" in named(found)
    cyclic = ft.CyclicPoisson(0.4, 3)
    part_of = source.integers(3, size=600)

    def turns(rate: float, moving: int = 0) -> list[np.ndarray]:
        drawn = []
        for t in range(90):
            mine = np.flatnonzero((part_of + (t // 30) * moving) % 3 == t % 3)
            drawn.append(mine[source.random(len(mine)) < rate])
        return drawn

    sound = participation.sampling_findings(cyclic, turns(0.4), 600, source)
    assert named(sound) == []
    other = participation.sampling_findings(cyclic, turns(0.5), 600, source)
    assert "rate at which records of a part take part" in named(other)
    moved = participation.sampling_findings(cyclic, turns(0.4, moving=1), 600, source)
    assert "records in rounds of other parts" in named(moved)


def test_epochs_in_which_all_have_had_their_turn_early_pass() -> None:
    source = np.random.default_rng(3)
    turns = source.integers(10, size=(40, 6))
    members = [np.flatnonzero(turns[t // 10] == t % 10) for t in range(400)]
    found = participation.sampling_findings(ft.RandomAllocation(10), members, 6, source)
    assert named(found) == []


def batches(rounds: int = 60, examples: int = 600, rate: float = 0.1) -> list[np.ndarray]:
    source = np.random.default_rng(7)
    return [np.flatnonzero(source.random(examples) < rate) for _ in range(rounds)]


def named(found: list[Finding]) -> list[str]:
    return [finding.name for finding in found if finding.refutes(LEVEL)]


def test_batches_drawn_record_by_record_pass() -> None:
    found = participation.sampling_findings(
        ft.Poisson(0.1), batches(), 600, np.random.default_rng(0)
    )
    assert named(found) == []


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (lambda b: [b[t % 7] for t in range(60)], "spread of counts per record"),
        (lambda b: [b[t - t % 2] for t in range(60)], "independence of successive rounds"),
        (lambda b: [np.sort(np.r_[r // 2 * 2, r // 2 * 2 + 1])[::2] for r in b], "which records"),
        (lambda b: [np.unique(np.r_[r[::2], r[::2] ^ 1]) for r in b], "independence of neighbours"),
    ],
)
def test_other_batches_are_refuted_by_name(fault: object, name: str) -> None:
    members = fault(batches())  # type: ignore[operator]
    found = named(
        participation.sampling_findings(ft.Poisson(0.1), members, 600, np.random.default_rng(0))
    )
    assert any(text.startswith(name) for text in found), found


def test_large_data_is_scaled_down_at_its_rate() -> None:
    big = Plan(
        ft.Mechanism(ft.Rounds(1.0, 9, ft.WithoutReplacement(50_000, 10**6)), adjacency="zero-out"),
        10**6,
        1e-7,
    )
    small = participation.dry_plan(big, QUICK)
    assert small.examples == QUICK.population
    assert small.sampling == ft.WithoutReplacement(1_000, 20_000)


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(ValueError, match="level must be"):
        sizes_of("slow")

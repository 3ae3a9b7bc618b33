"""The transcript: equal to what was accounted, or no statement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.values.mechanism import (
    GRADIENTS,
    Correlated,
    CyclicPoisson,
    Examples,
    FullBatch,
    Groups,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.plan import COUNTS, Clip, Privacy, Transcript, TranscriptError
from forethought.values.strategies import Banded

N = 12
samplings = st.sampled_from([Poisson(0.3), WithoutReplacement(4, N), Shuffled(5, N), FullBatch()])
parts = st.lists(
    st.tuples(st.floats(0.1, 50), st.integers(1, 7), samplings), min_size=1, max_size=6
)


def privacy(rows: object, grouped: bool = False, clip: Clip | None = None) -> Privacy:
    clipping = "group" if grouped else "example"
    rounds = (Rounds(*row, clipping) for row in rows)  # type: ignore[attr-defined]
    mechanism = Mechanism(*rounds, adjacency="zero-out")
    contribution = Groups(2) if grouped else Examples()
    return Privacy(mechanism, N, 1e-5, clip or Clip(0.37), contribution)


def written(chosen: Privacy, rounds: int | None = None) -> Transcript:
    transcript = Transcript()
    for index in range(chosen.rounds if rounds is None else rounds):
        released = chosen.round(index)
        transcript.append(released, released.noise_std, released.clip_norm, released.count_noise)
    return transcript


@given(rows=parts, grouped=st.booleans(), norm=st.floats(1e-3, 1e3))
def test_what_the_plan_says_is_what_is_found(rows: object, grouped: bool, norm: float) -> None:
    chosen = privacy(rows, grouped, Clip(norm))
    transcript = written(chosen)
    assert transcript.mechanism("zero-out") == chosen.mechanism
    transcript.require(chosen.mechanism)
    again = Transcript.from_values(transcript.to_values())
    again.require(chosen.mechanism)
    assert again.releases() == transcript.releases()


def test_groups_are_noted_as_they_were_dealt() -> None:
    part = Rounds(1.0, 3, Poisson(0.1), "group", groups=2)
    mechanism = Mechanism(part, adjacency="zero-out")
    transcript = written(Privacy(mechanism, N, 1e-5, Clip(1.0), Groups(2)))
    transcript.require(mechanism)
    other = Mechanism(Rounds(1.0, 3, Poisson(0.1), "group", groups=1), adjacency="zero-out")
    with pytest.raises(TranscriptError, match="part 1"):
        transcript.require(other)


@given(rows=parts, data=st.data())
def test_a_prefix_is_enough_for_a_run_that_stopped(rows: object, data: st.DataObject) -> None:
    chosen = privacy(rows)
    done = data.draw(st.integers(1, chosen.rounds))
    transcript = written(chosen, done)
    transcript.require(chosen.mechanism, stopped=True)
    if done < chosen.rounds:
        with pytest.raises(TranscriptError, match=f"{done} rounds were released"):
            transcript.require(chosen.mechanism)


@given(sigma=st.floats(0.2, 20), room=st.floats(1.01, 10))
def test_the_quantile_count_is_in_it_by_its_own_name(sigma: float, room: float) -> None:
    chosen = privacy(
        [(sigma, 5, Poisson(0.3))], clip=Clip(1.0, "quantile", count_noise=room * sigma)
    )
    transcript = written(chosen)
    transcript.require(chosen.mechanism)
    gradients, counts = transcript.releases()
    assert (gradients.name, gradients.count) == (GRADIENTS, 5)
    assert gradients.noise_multiplier > sigma
    assert (counts.name, counts.noise_multiplier) == (COUNTS, 2 * room * sigma)


def test_each_difference_is_found() -> None:
    accounted = privacy([(2.0, 3, Poisson(0.3)), (1.0, 2, FullBatch())])
    for other in (
        [(2.0, 3, Poisson(0.3)), (1.0, 3, FullBatch())],
        [(2.0, 2, Poisson(0.3)), (1.0, 2, FullBatch())],
        [(2.0, 2, Poisson(0.3)), (1.0, 3, FullBatch())],
        [(1.0, 2, FullBatch()), (2.0, 3, Poisson(0.3))],
        [(2.0, 3, Poisson(0.3)), (1.0 - 1e-12, 2, FullBatch())],
        [(2.0, 3, Poisson(0.3)), (1.0, 2, Poisson(1.0))],
    ):
        with pytest.raises(TranscriptError, match="no statement"):
            written(privacy(other)).require(accounted.mechanism)
    with pytest.raises(TranscriptError, match="no statement"):
        written(privacy([(2.0, 5, Poisson(0.3))], grouped=True)).require(
            privacy([(2.0, 5, Poisson(0.3))]).mechanism
        )
    with pytest.raises(TranscriptError, match="nothing"):
        Transcript().require(accounted.mechanism)


def test_rounds_are_released_once_and_in_order() -> None:
    chosen = privacy([(2.0, 3, Poisson(0.3))])
    transcript = written(chosen, 2)
    for index, message in ((1, "again"), (0, "again"), (2, None)):
        released = chosen.round(index)
        if message is None:
            transcript.append(released, released.noise_std, released.clip_norm)
        else:
            with pytest.raises(TranscriptError, match=message):
                transcript.append(released, released.noise_std, released.clip_norm)
    early = written(chosen, 1)
    with pytest.raises(TranscriptError, match="before its turn"):
        early.append(chosen.round(2), 2.0, 1.0)


def test_shuffled_epochs_that_a_part_cuts_are_not_one_longer_part() -> None:
    chosen = privacy([(1.0, 2, Shuffled(5, N)), (1.0, 4, Shuffled(5, N))])
    assert len(chosen.mechanism.rounds) == 2
    written(chosen).require(chosen.mechanism)
    with pytest.raises(TranscriptError, match="no statement"):
        written(privacy([(1.0, 6, Shuffled(5, N))])).require(chosen.mechanism)


def test_phases_follow_each_other_and_scores_have_their_name() -> None:
    one, other = privacy([(2.0, 3, Poisson(0.3))]), privacy([(1.0, 2, Shuffled(5, N))])
    transcript, later = written(one), written(other)
    later.append_other("score", 7.0)
    transcript.extend(later)
    transcript.require(one.mechanism + other.mechanism)
    assert len(transcript) == 5
    assert [(r.name, r.count) for r in transcript.releases()][-1] == ("score", 1)


def test_its_size_is_that_of_the_different_rounds() -> None:
    chosen = privacy([(2.0, 1000, Poisson(0.3)), (1.0, 1000, FullBatch())])
    assert len(written(chosen).to_values()["rounds"]) == 2


def released_again(chosen: Privacy, which: dict[int, int]) -> Transcript:
    transcript = Transcript()
    for index in range(chosen.rounds):
        one = chosen.round(index)
        times = which.get(index, 1)
        transcript.append(one, one.noise_std, one.clip_norm, one.count_noise, one.strategy, times)
    return transcript


def noises(transcript: Transcript) -> list[tuple[int, float]]:
    return [(part.count, part.noise_multiplier) for part in transcript.mechanism("zero-out")]


def test_rounds_released_again_have_the_noise_of_all_their_releases() -> None:
    chosen = privacy([(2.0, 6, Poisson(0.3))])
    transcript = released_again(chosen, {2: 2, 3: 2, 4: 9})
    found = noises(transcript)
    assert [count for count, _ in found] == [2, 2, 1, 1]
    assert [sigma for _, sigma in found] == pytest.approx([2, 2 / 2**0.5, 2 / 3, 2], rel=1e-12)
    assert all(
        sigma <= 2 / times**0.5 for (_, sigma), times in zip(found, [1, 2, 9, 1], strict=True)
    )
    assert transcript.again == 3
    transcript.require(chosen.mechanism, once=True)
    with pytest.raises(TranscriptError):
        transcript.require(chosen.mechanism)
    read = Transcript.from_values(transcript.to_values())
    assert read.releases() == transcript.releases() and noises(read) == found
    assert sum(row.count for row in read.releases()) == 6


@pytest.mark.parametrize("index", [0, 3, 5])
def test_an_epoch_counts_as_often_as_its_round_that_was_released_most(index: int) -> None:
    """Its later rounds hold what its earlier ones did not: no mechanism without them."""
    chosen = privacy([(2.0, 6, Shuffled(5, N)), (2.0, 2, Poisson(0.3))])
    found = noises(released_again(chosen, {index: 4}))
    assert found == [(6, pytest.approx(1.0)), (2, 2.0)]


def test_correlated_rounds_count_as_often_as_the_one_that_was_released_most() -> None:
    part = Correlated(2.0, 4, FullBatch(), strategy=Banded((1.0, 0.5)))
    chosen = Privacy(Mechanism(part, part, adjacency="zero-out"), N, 1e-5)
    found = noises(released_again(chosen, {5: 4}))
    assert found == [(4, 2.0), (4, pytest.approx(1.0))]


def test_the_count_of_a_round_is_released_again_with_it() -> None:
    clip = Clip(0.37, "quantile", count_noise=3.0)
    chosen = privacy([(1.0, 2, FullBatch())], clip=clip)
    transcript = released_again(chosen, {1: 4})
    (_, once), (_, again) = noises(transcript)
    assert once == pytest.approx(1.0) and again == pytest.approx(0.5)
    assert [row.name for row in transcript.releases()] == [GRADIENTS, COUNTS] * 2


@pytest.mark.parametrize(
    "part",
    [
        Rounds(1.0, 8, Shuffled(3, N)),
        Rounds(1.0, 8, RandomAllocation(4)),
        Rounds(1.0, 8, CyclicPoisson(1.0, 4)),
        Correlated(1.0, 8, FullBatch(), strategy=Banded((1.0, 0.5))),
    ],
)
def test_rounds_left_out_of_an_epoch_do_not_make_one_of_the_others(part: Rounds) -> None:
    """Rounds 0, 1, 4 and 5 may hold a record twice, the first four hold it once."""
    chosen, transcript = Privacy(Mechanism(part, adjacency="zero-out"), N, 1e-5), Transcript()
    for index in (0, 1, 4, 5):
        transcript.skip(index)
        released = chosen.round(index)
        drawn = part.strategy if isinstance(part, Correlated) else None
        transcript.append(released, released.noise_std, released.clip_norm, strategy=drawn)
    for found in (transcript, Transcript.from_values(transcript.to_values())):
        with pytest.raises(TranscriptError, match="left out"):
            found.require(chosen.mechanism, stopped=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"others": [["score", 1.0, 2], ["score", 1.0, 1]]},
        {"skipped": [[4, 2]]},
        {"skipped": [[2, 1], [1, 1]]},
        {"rounds": [{"noises": []}]},
        {"rounds": [{"released": 7}]},
    ],
)
def test_an_edited_transcript_is_refused(changed: dict[str, list[object]]) -> None:
    values = written(privacy([(1.0, 3, Poisson(0.3))])).to_values()
    (row,) = values["rounds"]
    edited = {**values, **changed}
    edited["rounds"] = [{**row, **other} for other in changed.get("rounds", [{}])]
    Transcript.from_values(values)
    with pytest.raises(ValueError, match="transcript"):
        Transcript.from_values(edited)


def test_noise_in_single_precision_is_the_noise_that_is_accounted() -> None:
    clip = Clip(0.37, "quantile", count_noise=np.float32(5.3))
    chosen = privacy([(1.1, 2, Poisson(0.3))], clip=clip)
    written(chosen).require(chosen.mechanism)

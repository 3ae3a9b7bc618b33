from __future__ import annotations

import pytest
import torch

from drawn import randn
from forethought.training.optimizers import IterateAverage
from forethought.values.use import Averaging


def run(averaging: Averaging, rounds: int) -> tuple[float, list[float]]:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    average = IterateAverage(averaging, {"w": weight}, rounds)
    iterates = []
    for done in range(1, rounds + 1):
        with torch.no_grad():
            weight.fill_(done**2)
        iterates.append(float(done**2))
        average.update(done)
    return float(average.values["w"]), iterates


def test_tail_is_the_mean_of_the_last_iterates() -> None:
    value, iterates = run(Averaging("tail", fraction=0.25), 10)
    assert value == pytest.approx(sum(iterates[-3:]) / 3, rel=1e-12)
    value, iterates = run(Averaging("tail", fraction=1.0), 7)
    assert value == pytest.approx(sum(iterates) / 7, rel=1e-12)


def test_exponential_follows_its_recursion() -> None:
    value, iterates = run(Averaging("exponential", decay=0.6), 12)
    expected = 0.0
    for done, iterate in enumerate(iterates, start=1):
        decay = min(0.6, (1 + done) / (10 + done))
        expected = decay * expected + (1 - decay) * iterate
    assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_average_of_16_bits_keeps_small_steps(dtype: torch.dtype) -> None:
    """The mean moves by less than the distance of two such numbers."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))

    def made() -> IterateAverage:
        return IterateAverage(Averaging("tail", fraction=1.0), {"w": weight}, 400)

    average = made()
    for done in range(1, 401):
        with torch.no_grad():
            weight.fill_(1 if done <= 200 else 2)
        average.update(done)
        state = {name: value.clone() for name, value in average.state().items()}
        average = made()  # as after a checkpoint
        average.restore(state)
    assert average.values["w"].dtype == dtype
    average.hand_over()
    assert float(average.values["w"]) == float(weight.detach()) == 1.5


def test_none_is_the_last_iterate() -> None:
    assert run(Averaging("none"), 5)[0] == 25.0


def test_state_restores_exactly() -> None:
    weight = torch.nn.Parameter(randn(4))
    one = IterateAverage(Averaging(), {"w": weight}, 10)
    one.update(1)
    other = IterateAverage(Averaging(), {"w": torch.nn.Parameter(torch.zeros(4))}, 10)
    other.restore({name: value.clone() for name, value in one.state().items()})
    assert torch.equal(one.values["w"], other.values["w"])

"""A utility graph is trained with clipping, without noise, perturbed as stated, and refused on
private data."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drawn import rand, randint, reseed
from forethought.data import Dataset, Split
from forethought.models import build
from forethought.utility import perturbing
from forethought.utility.graph import LEAKS
from forethought.utility.perturbing import utility_graph
from forethought.values.use import Optimizer


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.int64)


SMALL: dict[str, Any] = {
    "source": "public",
    "clip_norms": (1e-3, 1.0),
    "noise_multipliers": (0.1, 3.0),
    "draws": 3,
    "batch": 128,
    "rounds": 40,
    "optimizer": Optimizer("sgd", 1.0),
}


def linear() -> nn.Module:
    return build("linear", inputs=(64,), classes=10)


def test_graph_has_the_shape_of_the_grid_and_falls_with_noise(digits: tuple[Any, Any]) -> None:
    calls: list[tuple[int, int]] = []
    graph = utility_graph(
        linear(), digits, **SMALL, progress=lambda done, total: calls.append((done, total))
    )
    assert graph.accuracy.shape == (2, 2, 3) and graph.test_examples == round(0.2 * 1797)
    assert graph.noiseless[1] > 0.85
    assert graph.mean[1, 0] > 0.9 > graph.mean[1, 1]
    assert calls == [(k, 8) for k in range(1, 9)]
    assert graph.training.noise_multiplier == 0 and graph.training.rounds == 40


def test_a_small_clip_norm_converges_more_slowly_and_bears_more_noise(
    digits: tuple[Any, Any],
) -> None:
    graph = utility_graph(linear(), digits, **{**SMALL, "clip_norms": (0.03, 1.0)})
    assert graph.noiseless[0] < graph.noiseless[1]
    assert graph.mean[0, 1] > graph.mean[1, 1] + 0.1


def test_same_seed_same_graph_and_other_draws_for_another(digits: tuple[Any, Any]) -> None:
    one, again, other = (utility_graph(linear(), digits, **SMALL, seed=s) for s in (1, 1, 2))
    assert one.to_dict() == again.to_dict()
    assert not np.array_equal(one.accuracy, other.accuracy)
    assert len(set(one.accuracy[1, 1])) > 1  # the draws differ


def test_the_given_model_is_left_alone_and_a_maker_is_called_once(digits: tuple[Any, Any]) -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(nn.Sequential(nn.Linear(64, 10)))
        return made[-1]

    before = torch.get_rng_state()
    graph = utility_graph(make, digits, **SMALL)
    assert len(made) == 1 and torch.equal(torch.get_rng_state(), before)
    assert utility_graph(make, digits, **SMALL).to_dict() == graph.to_dict()
    model = linear()
    state = copy.deepcopy(model.state_dict())
    utility_graph(model, digits, **SMALL)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_perturbation_has_standard_deviation_scale_times_norm_times_sigma() -> None:
    # One weight, whose value the score reports: 600 draws tell its deviation to 3 % (one standard
    # error); the tolerance of 16 % fails by chance with probability below 1e-6.
    data = np.ones((50, 1), np.float32), np.ones(50, np.float32)

    def value(outputs: Tensor, targets: Tensor) -> float:
        return float(0.5 + outputs[0, 0] / 100)

    graph = utility_graph(
        nn.Sequential(nn.Linear(1, 1, bias=False)),
        data,
        source="synthetic",
        clip_norms=(0.5, 2.0),
        noise_multipliers=(1.0, 4.0),
        draws=600,
        noise_scale=0.7,
        rounds=1,
        batch=10,
        score=value,
    )
    wanted = 0.7 * np.outer([0.5, 2.0], [1.0, 4.0])
    np.testing.assert_allclose(100 * graph.accuracy.std(axis=-1, ddof=1), wanted, rtol=0.16)
    means = 100 * (graph.accuracy.mean(axis=-1) - graph.noiseless[:, None])
    assert (np.abs(means) < 5 * wanted / np.sqrt(600)).all()
    # Draw by draw the same direction at every pair, so that curves can be compared.
    unit = (graph.accuracy - graph.noiseless[:, None, None]) * 100 / wanted[..., None]
    np.testing.assert_allclose(unit, np.broadcast_to(unit[0, 0], unit.shape), rtol=1e-2, atol=1e-2)


def test_every_weight_gets_noise_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 5))
    seen: list[Tensor] = []

    def keep(outputs: Tensor, targets: Tensor) -> float:
        seen.append(torch.cat([p.detach().flatten().clone() for p in looped.parameters()]))
        return 0.0

    looped = copy.deepcopy(model)
    perturbed = perturbing.Perturbed(looped, rand(4, 30), torch.zeros(4), keep)
    perturbed.stacked = None
    perturbed.scores([0.0, 2.0], draw=1, seed=0)
    perturbed.scores([2.0], draw=2, seed=0)
    noise = torch.stack([seen[1] - seen[0], seen[2] - seen[0]])
    # 1,445 values: standard errors of 1.9 % (deviation) and 2.6 % (correlation); five of them.
    assert noise.std(1).sub(2).abs().max() < 2 * 0.095
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.13


@pytest.mark.parametrize("name", ["linear", "lenet5"])
def test_loop_and_side_by_side_measure_the_same(name: str) -> None:
    reseed(0)
    model = build(name, inputs=(1, 28, 28), classes=10, seed=0)
    inputs, labels = rand(150, 1, 28, 28), randint(10, (150,))
    perturbed = perturbing.Perturbed(model, inputs, labels, perturbing.accuracy_of)
    deviations = [0.0, *np.linspace(0.01, 0.5, 20)]
    fast = perturbed.scores(deviations, draw=3, seed=5)
    assert perturbed.stacked is not None
    perturbed.stacked = None
    slow = perturbed.scores(deviations, draw=3, seed=5)
    np.testing.assert_allclose(fast, slow, atol=1.5 / 150)  # rounding may tip one example


def test_models_without_a_rule_and_datasets_work(digits: tuple[Any, Any]) -> None:
    model = nn.Sequential(nn.Linear(64, 16), nn.LayerNorm(16), nn.Linear(16, 10))
    data = TensorDataset(*map(torch.from_numpy, digits))
    graph = utility_graph(model, data, **{**SMALL, "clip_norms": (1.0,)}, test_examples=100)
    assert graph.test_examples == 100 and graph.noiseless[0] > 0.7


def test_non_finite_outputs_are_wrong_answers() -> None:
    outputs = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [torch.inf, 0.0], [0.0, 1.0]])
    assert perturbing.accuracy_of(outputs, torch.tensor([0, 0, 0, 0])) == 0.25


def test_private_data_is_refused_unless_the_leak_is_accepted(digits: tuple[Any, Any]) -> None:
    private = {**SMALL, "source": "private"}
    with pytest.raises(ValueError, match=r"leaks='accept'"):
        utility_graph(linear(), digits, **private)
    graph = utility_graph(linear(), digits, **private, leaks="accept")
    assert graph.not_covered == (LEAKS,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": "mine"}, "source"),
        ({"leaks": "yes"}, "leaks"),
        ({"clip_norms": ()}, "clip_norms"),
        ({"noise_multipliers": (0.0,)}, "noise_multipliers"),
        ({"draws": 0}, "draws"),
        ({"noise_scale": 0.0}, "noise_scale"),
        ({"epochs": 1, "rounds": 2}, "drop one"),
        ({"batch": 5000}, "batch"),
        ({"clip_rule": "quantile"}, "clip_rule"),
        ({"test_examples": 0}, "test_examples"),
        ({"score": lambda outputs, targets: 87.0}, "score must be"),
    ],
)
def test_bad_arguments_are_named(
    digits: tuple[Any, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        utility_graph(linear(), digits, **{**SMALL, **changes})


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images)  # type: ignore[no-any-return]


def test_a_part_of_any_data_is_held_back(digits: tuple[Any, Any]) -> None:
    images, labels = digits[0][:200], torch.tensor(digits[1][:200])
    forms = ({"images": images}, labels), {"images": images, "labels": labels}
    by_name = [utility_graph(Named(), data, **SMALL) for data in forms]
    plain = utility_graph(Named(), [images.tolist(), labels], **SMALL)
    assert all(np.array_equal(one.noiseless, plain.noiseless) for one in by_name)


def test_what_is_no_model_no_data_or_no_classification_is_named(digits: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match="model must"):
        utility_graph("lenet5", digits, **SMALL)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="torch module"):
        utility_graph(lambda: 3, digits, **SMALL)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="data must"):
        utility_graph(linear(), 3, **SMALL)
    for change in ({"score": "accuracy"}, {"progress": 3}, {"clip_norms": 1.0}):
        with pytest.raises(TypeError, match=next(iter(change))):
            utility_graph(linear(), digits, **{**SMALL, **change})
    with pytest.raises(ValueError, match="too few"):
        utility_graph(linear(), (digits[0][:2], digits[1][:2]), **SMALL)
    falls = iter([0.5, -0.5])
    done: list[int] = []
    with pytest.raises(ValueError, match="score must be"):
        utility_graph(
            linear(),
            digits,
            **{
                **SMALL,
                "score": lambda *_: next(falls),
                "progress": lambda one, of: done.append(one),
            },
        )
    assert done == [1]  # as soon as it is seen


class Half(float):
    """A score that is a class: calling it makes a number."""

    def __new__(cls, outputs: Any, targets: Any) -> Any:
        return float.__new__(cls, 0.5)


def test_a_score_may_be_a_class_or_yes_and_no(digits: tuple[Any, Any]) -> None:
    for score, wanted in ((Half, 0.5), (lambda outputs, targets: True, 1.0)):
        graph = utility_graph(linear(), digits, **{**SMALL, "score": score, "rounds": 1})
        assert (graph.noiseless == wanted).all()


def test_data_that_cannot_be_scored_are_named(digits: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="score="):
        floats = digits[0], digits[1].astype(np.float32)
        utility_graph(build("linear", inputs=(64,), classes=1), floats, **SMALL)


def test_a_data_set_brings_its_own_test_part(digits: tuple[Any, Any]) -> None:
    inputs, labels = digits
    parts = Split(inputs[:1400], labels[:1400]), Split(inputs[1400:], labels[1400:])
    model = linear()
    graph = utility_graph(model, Dataset("digits", *parts, 10), **SMALL)
    pairs = [(part.inputs, part.targets) for part in parts]
    assert graph.to_dict() == utility_graph(model, pairs[0], test=pairs[1], **SMALL).to_dict()
    assert graph.test_examples == 397


def test_a_training_stops_at_the_first_pass_that_is_good_enough(digits: tuple[Any, Any]) -> None:
    def found(stop_at: float | None, rounds: int = 80) -> float:
        asked = {**SMALL, "clip_norms": (1.0,), "rounds": rounds, "draws": 1, "stop_at": stop_at}
        return float(utility_graph(linear(), digits, **asked).noiseless[0])

    passes = [found(None, rounds) for rounds in (11, 22, 33)]  # 1438 records, 128 a round
    assert passes[0] < passes[1]
    between = (passes[0] + passes[1]) / 2
    assert found(between) == passes[1]
    assert found(passes[0]) == passes[0]
    assert found(1.0) == found(None)

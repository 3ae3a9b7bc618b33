"""How much noise a network bears: against theory, and whatever module comes."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import forethought as ft  # noqa: E402
from forethought.data import Dataset, synthetic  # noqa: E402
from forethought.data.dataset import Split  # noqa: E402
from forethought.models import build  # noqa: E402
from forethought.planning import defaults, plan_request  # noqa: E402
from forethought.planning.plan_request import noise_borne  # noqa: E402

nn = torch.nn


def radius(shape: tuple[int, ...]) -> float:
    """How far apart the inputs are: the root of their total variance."""
    records = synthetic.like(shape, 10, 32, seed=0).train.inputs.reshape(32, -1)
    return math.sqrt(float(np.var(records.astype(np.float64), axis=0, ddof=1).sum()))


def zeros(*layers: torch.nn.Module) -> torch.nn.Module:
    model = nn.Sequential(nn.Flatten(), *layers)
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def test_two_linear_layers_bear_what_theory_says() -> None:
    # n₂n₁x with n of deviation s: √h s² times the distance of two inputs.
    hidden = 400
    model = zeros(nn.Linear(64, hidden, bias=False), nn.Linear(hidden, 10, bias=False))
    deviation = math.sqrt(plan_request.SPREAD / (math.sqrt(hidden) * radius((1, 8, 8))))
    assert noise_borne(model, (1, 8, 8)) == pytest.approx(
        deviation * math.sqrt(74 * hidden), rel=0.1
    )


def test_what_grows_in_proportion_bears_the_smaller_spread() -> None:
    # One layer: s times the distance of two inputs.
    model = zeros(nn.Linear(64, 100, bias=False))
    deviation = plan_request.BOUNDED_SPREAD / radius((1, 8, 8))
    assert noise_borne(model, (1, 8, 8)) == pytest.approx(deviation * math.sqrt(6_400), rel=0.1)


def test_noise_is_counted_beside_weights_that_were_trained_before() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100, bias=False))
    with torch.no_grad():
        model[1].weight.mul_(100)  # scores of 100 and more, which no noise of this size moves
    assert noise_borne(model, (1, 8, 8)) == noise_borne(
        zeros(nn.Linear(64, 100, bias=False)), (1, 8, 8)
    )


@pytest.mark.parametrize(
    ("name", "side", "wanted"),
    [  # of least worst case on the sets looked at, experiments/defaults/network_paths.md
        ("mlp", 8, 32),
        ("mlp", 14, 37),
        ("mlp", 28, 52),
        ("lenet5", 14, 36),
        ("lenet5", 28, 53),
        ("cnn", 8, 105),
    ],
)
def test_networks_of_the_zoo_bear_what_was_best_for_them(
    name: str, side: int, wanted: float
) -> None:
    model = build(name, inputs=(1, side, side), classes=10, seed=0)
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    found = noise_borne(model, (1, side, side))
    assert found is not None
    assert wanted / 1.3 < found < wanted * 1.3
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.requires_grad for p in model.parameters())


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(x).mean(1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Tokens(), (5,)),  # takes no floating-point numbers
        (nn.Linear(3, 2), (1, 8, 8)),  # of another shape
        (nn.Linear(3, 2), (2, 3)),  # no synthetic data have this shape
        (nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()), (3,)),  # scores that never move so far
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).requires_grad_(False)).eval(), (9,)),
    ],
)
def test_what_cannot_be_tried_is_planned_as_before(
    model: torch.nn.Module, shape: tuple[int, ...]
) -> None:
    assert noise_borne(model, shape) is None


@pytest.mark.parametrize("shape", [20, "20", (20, 0), (2.5,), (-1,)])
def test_a_shape_that_is_none_is_refused(shape: object) -> None:
    model = build("mlp", inputs=(20,), classes=2)
    with pytest.raises((TypeError, ValueError), match="shape"):
        ft.plan(examples=500, budget=ft.Budget(1.0, 1e-5), model=model, shape=shape)  # type: ignore[arg-type]


def test_steps_are_as_long_as_the_noise_that_is_borne() -> None:
    given = {"examples": 3_000, "budget": ft.Budget(1.0, 1e-5), "batch": 300, "parameters": 9_000}
    usual = ft.plan(**given).optimizer.learning_rate
    for times in (0.5, 1.0, 2.0):
        plan = ft.plan(**given, noise_borne=times * defaults.NOISE)
        assert plan.optimizer.learning_rate == pytest.approx(times * usual, rel=1e-3)
        assert plan.assumed.parameters == 9_000
        assert "9,000 weights" in dict(plan.reasons)["step size"]


def test_a_model_and_a_shape_are_enough() -> None:
    model = build("mlp", inputs=(1, 8, 8), classes=10, seed=0)
    plan = ft.plan(examples=500, budget=ft.Budget(1.0, 1e-5), model=model, shape=(1, 8, 8))
    same = ft.plan(
        examples=500,
        budget=ft.Budget(1.0, 1e-5),
        parameters=9_610,
        noise_borne=noise_borne(model, (1, 8, 8)),
    )
    assert plan == same


def test_a_tables_units_change_the_noise_that_two_layers_bear() -> None:
    # √h s² times the distance of two records: half the noise where that is four times as large.
    model = zeros(nn.Linear(30, 400, bias=False), nn.Linear(400, 4, bias=False))
    bare, *scaled = (noise_borne(model, (30,), r) for r in (None, 0.5, 2.0, 8.0))
    assert bare is not None and None not in scaled
    assert scaled[0] / scaled[1] == pytest.approx(2, rel=0.05)
    assert scaled[1] / scaled[2] == pytest.approx(2, rel=0.05)
    deviation = math.sqrt(plan_request.SPREAD / (math.sqrt(400) * 2.0))
    assert scaled[1] == pytest.approx(deviation * math.sqrt(34 * 400), rel=0.1)
    assert noise_borne(model, (30,), radius((30,))) == bare


def test_images_are_pixels_whatever_norm_is_declared() -> None:
    model = build("mlp", inputs=(1, 8, 8), classes=10, seed=0)
    assert noise_borne(model, (1, 8, 8), 100.0) == noise_borne(model, (1, 8, 8))


class Faint(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 30


def test_what_hides_noise_is_not_planned_by_a_large_radius_either() -> None:
    hidden = nn.Sequential(nn.Linear(30, 200), Faint())
    assert noise_borne(hidden, (30,)) is None
    assert noise_borne(hidden, (30,), 30.0) is None


@pytest.mark.parametrize("norm", [None, 2.0, 20.0])
def test_a_network_on_a_table_is_planned_by_the_declared_norm(norm: float | None) -> None:
    random = np.random.default_rng(0)
    rows = Split(random.standard_normal((300, 9)).astype(np.float32), np.arange(300) % 2)
    data = Dataset("rows", rows, rows, 2, feature_norm=norm)
    model = build("mlp", inputs=(9,), classes=2, seed=0)
    half = None if norm is None else norm / 2
    borne = noise_borne(model, (9,), half)
    budget = ft.Budget(1.0, 1e-5)
    found = ft.plan(data=data, model=model, budget=budget)
    asked = ft.plan(
        examples=300,
        parameters=sum(p.numel() for p in model.parameters()),
        budget=budget,
        noise_borne=borne,
    )
    assert found.optimizer == asked.optimizer and found.mechanism == asked.mechanism
    assert found.hyperparameters == asked.hyperparameters  # declared, and not looked at


@pytest.mark.slow
def test_a_network_of_values_takes_steps_that_its_answers_bear() -> None:
    model = build("mlp", inputs=(6,), classes=1)
    asked = {"examples": 3000, "budget": ft.Budget(1.0, 1e-5), "model": model, "shape": (6,)}
    classes, values = ft.plan(**asked), ft.plan(**asked, squared_error=True)
    assert values.optimizer.learning_rate == pytest.approx(
        defaults.OF_VALUES * classes.optimizer.learning_rate, rel=1e-3
    )
    source = synthetic.slopes(4000, 6, seed=3)
    halves = [
        Split(source.inputs[at], source.targets[at]) for at in (slice(3000), slice(3000, None))
    ]
    data = Dataset("slopes", *halves, None)
    assert ft.plan(data=data, budget=asked["budget"], model=model) == values
    of = [
        ft.rehearse(
            plan,
            lambda: build("mlp", inputs=(6,), classes=1),
            data,
            repeats=2,
            test_examples=1000,
        )
        for plan in (values, classes)
    ]
    assert of[0].predicted > 0.5 > of[1].predicted

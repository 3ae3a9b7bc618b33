"""Shape functions add up to the answer, and their noise is what a plan's noise draws."""

from __future__ import annotations

import math
from datetime import date

import numpy as np
import polars as pl
import pytest
import torch

import forethought as ft
from forethought.data.basis import Curves
from forethought.data.columns import Encoder, TableSchema
from forethought.models import build
from forethought.planning.defaults import weight_noise
from forethought.training.shapes import AdditiveModel, Shapes, addition_of

COLUMNS = {
    "age": [0, 110],
    "ward": {"categories": ["A", "B"], "other": True, "missing": "category"},
    "sodium": {"range": [100, 180], "log": True, "missing": "category"},
    "admitted": {"date": ["2015-01-01", "2025-12-31"]},
    "name": "drop",
}


def model(outputs: int, pairs: bool = True, **more: object) -> AdditiveModel:
    parsed = tuple(TableSchema(COLUMNS).parsed().items())
    encoder = Encoder(parsed, "died", basis=Curves((0, 5, 7), 4, pairs), **more)  # type: ignore[arg-type]
    draw = np.random.default_rng(0)
    width = len(encoder.titles)
    return AdditiveModel(encoder, draw.normal(size=(outputs, width)), draw.normal(size=outputs))


def frame(rows: int = 200) -> pl.DataFrame:
    draw = np.random.default_rng(1)
    days = [date(2015, 1, 1 + int(day)) for day in draw.integers(0, 30, rows)]
    sodium = [None if draw.random() < 0.2 else draw.uniform(90, 190) for _ in range(rows)]
    words = draw.choice(np.array(["A", "B", "C", None], dtype=object), rows).tolist()
    return pl.DataFrame(
        {"age": draw.uniform(-5, 120, rows), "ward": words, "sodium": sodium, "admitted": days}
    )


def scores(made: AdditiveModel, features: np.ndarray) -> np.ndarray:
    raw = features.astype(np.float64) @ made.weight.T + made.bias
    if len(made.weight) == 1:
        low, high = made.encoder.target_range or (-1, 1)
        return raw * (high - low) / 2 + (high + low) / 2
    return raw[:, 1:] - raw[:, :1] if len(made.weight) == 2 else raw - raw.mean(1, keepdims=True)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(
    ("outputs", "more"), [(1, {"target_range": (3.0, 40.0)}), (2, {}), (3, {})]
)
def test_parts_add_up_to_the_score(outputs: int, more: dict[str, object], pairs: bool) -> None:
    made = model(outputs, pairs, **more)
    features = made.encoder.encode(frame(), "rows")
    total = made.intercept + made.columns(features).sum(1) + made.pairs(features)
    assert np.allclose(total, scores(made, features), atol=1e-4)
    assert made.names == ("age", "ward", "sodium", "admitted")


def test_curves_and_surfaces_have_mean_zero_and_a_curve_is_what_its_column_adds() -> None:
    made = model(2)
    found = made.shapes(["yes"], "log-odds", 0.1)
    shares = np.ones(65)
    shares[[0, -1]] = 0.5
    ward = next(shape for shape in found.columns if shape.column == "ward")
    assert ward.places == ("A", "B", "another word")
    assert abs(sum(ward.values[0])) < 1e-4 and len(ward.missing) == 1
    for shape in found.columns:
        if shape.kind != "word":
            assert abs(shares @ shape.values[0]) < 1e-3
    for surface in found.pairs:
        sides = np.array(surface.values[0])
        weights = np.ones(9)
        weights[[0, -1]] = 0.5
        assert np.allclose(weights @ sides, 0, atol=1e-4)
        assert np.allclose(sides @ weights, 0, atol=1e-4)
    age = found.columns[0]
    rows = frame(65).with_columns(age=pl.Series(age.places))
    added = made.columns(made.encoder.encode(rows, "rows"))[:, 0, 0]
    assert np.allclose(added, age.values[0], atol=1e-4)
    assert Shapes.from_json(found.to_json()) == found


@pytest.mark.slow
def test_the_band_is_the_deviation_that_noise_in_the_weights_draws() -> None:
    made = model(2)
    wanted = made.shapes(["yes"], "", 0.3)
    draw = np.random.default_rng(2)
    curves, surfaces = [], []
    for _ in range(400):
        noisy = AdditiveModel(made.encoder, 0.3 * draw.normal(size=made.weight.shape), made.bias)
        found = noisy.shapes(["yes"], "", None)
        curves.append([shape.values[0] for shape in found.columns if shape.kind != "word"])
        order = sorted(found.pairs, key=lambda one: one.columns)
        surfaces.append([surface.values[0] for surface in order])
    # Of 400 draws a deviation is off by 3.5 %; five of these, at a thousand places.
    expected = [shape.noise for shape in wanted.columns if shape.kind != "word"]
    assert np.allclose(np.std(curves, axis=0), expected, rtol=0.18)
    expected = [one.noise for one in sorted(wanted.pairs, key=lambda one: one.columns)]
    assert np.allclose(np.std(surfaces, axis=0), expected, rtol=0.18, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_a_plan_puts_no_more_noise_on_a_weight_than_it_says(options: dict[str, float]) -> None:
    """Records that say nothing leave noise alone in the weights."""
    features = 1500
    plan = ft.plan(
        examples=60,
        budget=ft.Budget(2.0, 1e-4),
        rounds=30,
        learning_rate=0.1,
        options=options,
        averaging=ft.Averaging("none"),
        parameters=2 * (features + 1),
    )
    net = build("linear", inputs=(features,), classes=2)
    found = ft.train(
        net,
        (torch.zeros(60, features), torch.zeros(60, dtype=torch.long)),
        plan,
        loss=lambda outputs, targets: outputs.sum(1) * 0,
        noise_seed=3,
    )
    spread = float(found.model.state_dict()["1.weight"].double().std())
    said = weight_noise(plan)
    assert said is not None
    # 3,000 weights: a deviation is off by 1.3 %, three of these.
    assert spread < 1.04 * said
    assert options or spread > 0.96 * said


def test_only_linear_models_of_the_table_add_column_by_column() -> None:
    made = model(2)
    width = len(made.encoder.titles)
    good = addition_of(made.encoder, build("additive", inputs=(width,), classes=2))
    assert good.weight.shape == (2, width)
    for name, inputs in (("mlp", width), ("linear", width + 1)):
        with pytest.raises(ValueError, match="column by column"):
            addition_of(made.encoder, build(name, inputs=(inputs,), classes=2))
    assert math.isclose(good.intercept[0], 0.0)
    adam = ft.plan(examples=60, budget=ft.Budget(2.0, 1e-4), rounds=30, optimizer="adam")
    assert weight_noise(adam) is None

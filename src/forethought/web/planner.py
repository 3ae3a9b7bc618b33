"""From where the sliders stand to a certified plan, what an attacker can do, and a front.

The accuracy that a plan might give a linear model is rehearsed on synthetic clusters, in NumPy.
Two clusters of public, synthetic records are learned by logistic regression with the plan's noise
for its batch. What private data allow nobody knows beforehand; this shows what the noise leaves of
something that is known. The whole set takes part in every step, so the noise of sampling is left
out, and more than :data:`STEPS` rounds are gathered into so many steps with the same noise in sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.accounting import exact
from forethought.planning import defaults
from forethought.planning.alternatives import approximate_epsilons, non_dominated
from forethought.planning.defaults import noise_to_signal
from forethought.planning.solve import plan
from forethought.values.mechanism import Budget, Mechanism
from forethought.values.plan import Plan

STEPS, RECORDS, REPEATS = 100, 600, 4
# Distance between the clusters: two in a hundred are on the wrong side.
_APART = 4.1


@dataclass(frozen=True)
class Expected:
    """Accuracy on new records of the same clusters: with the plan's noise, and without any."""

    accuracy: float
    without_noise: float


@lru_cache(maxsize=16)
def _clusters(features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Records (2 · RECORDS, features + 1), the first half for training, and classes of ±1."""
    draw = np.random.default_rng([features, 16])
    classes = np.where(draw.random(2 * RECORDS) < 0.5, -1.0, 1.0)
    direction = draw.normal(size=features)
    direction *= _APART / 2 / np.linalg.norm(direction)
    inputs = classes[:, None] * direction + draw.normal(size=(2 * RECORDS, features))
    return np.column_stack([inputs, np.ones(len(inputs))]), classes


def expected_accuracy(plan: Plan, features: int) -> Expected:
    """The accuracy of a linear model of so many features under a plan of equal rounds.

    Args:
        plan: with one contribution a record or person. features: columns of the synthetic records.
    """
    inputs, classes = _clusters(features)
    steps = min(STEPS, plan.rounds)
    each = plan.rounds / steps
    part = plan.mechanism.rounds[0]
    batch = plan.contribution.expected(plan.batch)
    noise = part.noise_multiplier / batch / math.sqrt(each)
    rate = plan.optimizer.learning_rate * plan.clip_norm * each
    momentum = plan.optimizer.momentum**each
    # Momentum is a longer step with some delay, which the gathered steps hardly have.
    rate *= 1.0 if momentum == 0 else (1 - momentum) / (1 - plan.optimizer.momentum)
    return Expected(
        _reached(inputs, classes, steps, rate, momentum, noise),
        _reached(inputs, classes, steps, rate, momentum, 0.0),
    )


def _reached(
    inputs: NDArray[np.float64],
    classes: NDArray[np.float64],
    steps: int,
    rate: float,
    momentum: float,
    noise: float,
) -> float:
    """Mean accuracy over several draws of the noise, the average of the last half's weights."""
    own, right = inputs[:RECORDS], classes[:RECORDS, None]
    signed = own * right
    norms = np.linalg.norm(own, axis=1)[:, None]
    draw = np.random.default_rng(16)
    repeats = REPEATS if noise else 1
    weights = np.zeros((own.shape[1], repeats))
    velocity, average = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(steps):
        wrong = 1 / (1 + np.exp(np.clip(signed @ weights, -50, 50)))
        # Automatic clipping: each contribution is divided by its norm.
        mean = signed.T @ (wrong / (norms * wrong + 0.01)) / RECORDS
        velocity = momentum * velocity + mean
        if noise:
            velocity += noise * draw.normal(size=weights.shape)
        weights += rate * velocity
        if 2 * step >= steps - 1:
            average += weights
    hits = (inputs[RECORDS:] @ average) * classes[RECORDS:, None] > 0
    return float(hits.mean())


# False alarms at which an attacker's detections are bounded.
FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
# Points of the privacy profile, in units of ε, that bound them: (ε, δ) at each is certified.
_POINTS = (0.1, 0.35, 0.7)
_BATCHES, _ROUNDS, _NOISE = 4, 2, 20


class SettingError(ValueError):
    """A slider's value that is none; names it and says what is allowed."""


@dataclass(frozen=True)
class Settings:
    """The places of the sliders.

    Args:
        epsilon: budget. delta: None: one tenth of one over the number of records or persons.
        records: to train on. persons: different ones among them; None: nobody says.
        records_per_person: how many may be one person's.
        epochs: passes over the data; None: the planner's choice.
        features: columns of the linear model that the expected accuracy is of.
    """

    epsilon: float = 3.0
    delta: float | None = None
    records: int = 5000
    persons: int | None = None
    records_per_person: int = 1
    epochs: float | None = None
    features: int = 20

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from what a page sends.

        Raises:
            SettingError: a name or a value that is none.
        """
        unknown = sorted(set(values) - set(_LIMITS))
        if unknown:
            raise SettingError(f"unknown setting {unknown[0]!r}: known are {', '.join(_LIMITS)}")
        return cls(**{name: _checked(name, value) for name, value in values.items()})

    def plan(self) -> Plan:
        """The plan for them.

        Raises:
            forethought.errors.PlanError, ValueError: no plan fulfils them.
        """
        counted = self.persons or self.records
        delta = self.delta or defaults.default_delta(counted)
        return plan(
            examples=self.records,
            budget=Budget(self.epsilon, delta),
            epochs=self.epochs,
            persons=self.persons,
            records_per_person=self.records_per_person,
            parameters=self.features + 1,
        )


# Setting → kind, least, most, whether it may be left to the planner.
_LIMITS: dict[str, tuple[type, float, float, bool]] = {
    "epsilon": (float, 0.01, 100.0, False),
    "delta": (float, 1e-30, 0.5, True),
    "records": (int, 10, 100_000_000, False),
    "persons": (int, 1, 100_000_000, True),
    "records_per_person": (int, 1, 100, False),
    "epochs": (float, 0.01, 10_000.0, True),
    "features": (int, 1, 1000, False),
}


def _checked(name: str, value: Any) -> Any:
    kind, least, most, optional = _LIMITS[name]
    if value is None and optional:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least <= value <= most:
        raise SettingError(f"{name} must be from {least:g} to {most:g}, not {value!r}")
    if kind is int and value != int(value):
        raise SettingError(f"{name} must be a whole number, not {value!r}")
    return kind(value)


def shown(settings: Settings) -> dict[str, Any]:
    """Everything the page draws, JSON-ready; ε and the attacker's limits are certified."""
    made = settings.plan()
    group = made.records_per_person
    spent = exact.epsilon(made.mechanism, made.delta, group).upper
    expected = expected_accuracy(made, settings.features)
    powers = attack(made.mechanism, group, spent, made.delta)
    return {
        "epsilon": spent,
        "delta": made.delta,
        "sigma": made.noise_multiplier,
        "batch": made.batch,
        "rounds": made.rounds,
        "epochs": made.epochs,
        "examples": made.examples,
        "unit": "persons" if made.examples != settings.records else "records",
        "together": group,
        "expected": expected.accuracy,
        "without_noise": expected.without_noise,
        "attack": [list(row) for row in powers],
        "noise": noise_to_signal(made),
        "front": front(settings.records, made.delta, group),
        "reasons": [list(pair) for pair in made.reasons],
    }


@lru_cache(maxsize=256)
def attack(
    mechanism: Mechanism, group: int, epsilon: float, delta: float
) -> list[tuple[float, float]]:
    """(False alarms, most detections) of any attacker, certified.

    Every (ε, δ) of the privacy profile bounds the power by e^ε FPR + δ, and with the roles
    exchanged by 1 − e^(−ε) (1 − FPR − δ) (Kairouz, Oh and Viswanath 2015, Theorem 2.1).
    """
    found = [(epsilon, delta)]
    for share in _POINTS:
        at = share * epsilon
        found.append((at, exact.delta(mechanism, at, group, accuracy=0.1).upper))
    return [
        (
            alarm,
            min(
                1.0,
                *(missed + math.exp(at) * alarm for at, missed in found),
                *(1 - math.exp(-at) * (1 - alarm - missed) for at, missed in found),
            ),
        )
        for alarm in FALSE_ALARMS
    ]


@lru_cache(maxsize=64)
def front(examples: int, delta: float, group: int) -> list[list[float]]:
    """Points (ε, noise for the signal) of plans that no other of these beats, ε by estimate.

    Estimates (a central limit theorem) sort plans and are no guarantee; the chosen plan's ε is.
    """
    most = max(1.0, examples / 2)
    batches = np.unique(np.geomspace(min(20.0, most), most, _BATCHES).astype(int))
    plans = [
        plan(
            examples=examples,
            delta=delta,
            batch=int(batch),
            rounds=int(rounds),
            noise_multiplier=float(sigma),
            learning_rate=1.0,
        )
        for batch in batches
        for rounds in np.geomspace(30, 1000, _ROUNDS).astype(int)
        for sigma in np.geomspace(0.6, 40, _NOISE)
    ]
    if group > 1:
        plans = [made.with_(records_per_person=group) for made in plans]
    spent = approximate_epsilons(plans)
    noise = np.array([noise_to_signal(made) for made in plans])
    kept = np.flatnonzero((spent > 0.02) & (spent < 100) & np.isfinite(spent))
    costs = np.column_stack([spent[kept], noise[kept]])
    best = costs[non_dominated(costs)]
    return [[float(x), float(y)] for x, y in best[np.argsort(best[:, 0])]]

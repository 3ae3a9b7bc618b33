"""The results for the sliders' settings: a certified plan, an attacker's limits, the noise's cost.

``forethought plan`` and ``forethought train`` make the same plan for the same job or the same
numbers, by the same call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from itertools import accumulate
from typing import Any

import numpy as np

from forethought import jobs
from forethought.accounting import exact
from forethought.accounting.interval import first_to_last
from forethought.accounting.tradeoff import tradeoff
from forethought.planning import defaults
from forethought.planning.defaults import noise_to_signal
from forethought.planning.forecast import Forecast, forecast
from forethought.planning.plan_request import PlanRequest
from forethought.planning.solve import plan
from forethought.values.mechanism import Budget, Persons
from forethought.values.plan import Plan

# False alarms at which an attacker's detections are bounded.
FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
# Values of ε to compare, in units of the chosen one.
BUDGETS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Numbers of records to compare, in units of the chosen one.
_SIZES = (1 / 16, 1 / 4, 4.0, 16.0)
_MOST_EPSILON, _LEAST_RECORDS = 100.0, 10


class SettingError(ValueError):
    """An invalid setting; the message names it and the allowed values."""


def _slider(default: float | None, least: float, most: float) -> Any:
    """A setting between two ends, whole if they are; it may be None if that is its default."""
    return field(default=default, metadata={"ends": (least, most)})


@dataclass(frozen=True)
class Settings:
    """The settings of the sliders.

    Args:
        epsilon, delta: budget; δ None: 1/(10 · records).
        records: number of records to train on. persons: number of different persons among them;
            None: not known.
        records_per_person: largest number of records of one person.
        epochs: passes over the data; None: the planner's choice, or the job's rounds.
        features: number of features of a linear model; not used for a job, whose model is known.
        without: AUC that a model without privacy is supposed to reach.
    """

    epsilon: float = _slider(3.0, 0.01, _MOST_EPSILON)
    delta: float | None = _slider(None, 1e-30, 0.5)
    records: int = _slider(5000, _LEAST_RECORDS, 100_000_000)
    persons: int | None = _slider(None, 1, 100_000_000)
    records_per_person: int = _slider(1, 1, 100)
    epochs: float | None = _slider(None, 0.01, 10_000.0)
    features: int = _slider(20, 1, 1000)
    without: float = _slider(0.9, 0.51, 0.999)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """The settings from a request of the page.

        Raises:
            SettingError: an unknown name or an invalid value.
        """
        known = {own.name: own for own in fields(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise SettingError(f"unknown setting {unknown[0]!r}: known are {', '.join(known)}")
        return cls(**{name: _checked(known[name], value) for name, value in values.items()})

    def plan(
        self, loaded: jobs.load.Loaded | None = None, asked: PlanRequest | None = None
    ) -> Plan:
        """The plan for these settings; with a job, they replace the job's own numbers.

        Args:
            loaded: the job with its data; None: there is no job.
            asked: the job's request to the planner; None: it is made again.

        Raises:
            forethought.errors.PlanError, ValueError: no plan fulfils the settings.
        """
        if loaded is None:
            own = {"epsilon": self.epsilon, "delta": self.delta, "epochs": self.epochs}
            request = jobs.job.from_numbers(records_per_person=self.records_per_person, **own)
            numbers = self.records, self.features + 1
            return plan(request.job.plan_request(*numbers, persons=self.persons))
        budget = Budget(self.epsilon, self.delta or defaults.default_delta(self.records))
        here = loaded.resized(self.records, budget)
        asked = asked if asked and here is loaded else here.plan_request()
        asked = asked.with_(
            budget=budget,
            delta=None,
            noise_multiplier=None if asked.budget is None else asked.noise_multiplier,
            examples=self.records,
            persons=self.persons,
            records_per_person=self.records_per_person,
            epochs=self.epochs,
            rounds=asked.rounds if self.epochs is None else None,
        )
        return here.with_caveats(plan(here.with_ranges(asked)))


def _checked(own: Field[Any], value: Any) -> Any:
    (least, most), name = own.metadata["ends"], own.name
    if value is None is own.default:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise SettingError(f"{name} must be from {least:g} to {most:g}, not {value!r}")
    if isinstance(least, int) and value != int(value):
        raise SettingError(f"{name} must be a whole number, not {value!r}")
    return type(least)(value)


def shown(settings: Settings, loaded: jobs.load.Loaded | None = None) -> dict[str, Any]:
    """Everything that the page shows, JSON-ready; ε and the attacker's limits are certified.

    Args:
        settings: of the sliders. loaded: the job of the page with its data; None: there is no job.
    """
    asked = None if loaded is None else loaded.plan_request()
    made = settings.plan(loaded, asked)
    group = made.records_per_person
    spent = exact.epsilon(made.mechanism, made.delta, group).upper
    missed = tradeoff(made.mechanism, group)(FALSE_ALARMS)
    features = settings.features if loaded is None else loaded.forecast_features
    cost = None if features is None else _cost(forecast(made, features, settings.without))
    budgets = []
    others = _noises(settings, made, loaded, asked)
    for epsilon in (factor * settings.epsilon for factor in BUDGETS):
        if 0.01 <= epsilon <= _MOST_EPSILON:
            here = epsilon == settings.epsilon
            one = made if here else replace(settings, epsilon=epsilon).plan(loaded, asked)
            lost = None if features is None else forecast(one, features, settings.without).lost
            budgets.append([epsilon, _worth(noise_to_signal(one), others), lost])
    return {
        "epsilon": spent,
        "delta": made.delta,
        "sigma": first_to_last([part.noise_multiplier for part in made.privacy.mechanism], ".4g"),
        "batch": made.mean_batch,
        "rounds": made.rounds,
        "epochs": made.epochs,
        "examples": made.examples,
        "adjacency": made.mechanism.adjacency,
        "unit": "persons" if isinstance(made.contribution, Persons) else "records",
        "together": group,
        "cost": cost,
        "budgets": budgets,
        "attack": [[alarm, 1.0 - miss] for alarm, miss in zip(FALSE_ALARMS, missed, strict=True)],
        "reasons": [list(pair) for pair in made.reasons],
    }


def seconds(settings: Settings, loaded: jobs.load.Loaded | None) -> float | None:
    """The seconds of a job's training here; None: no job, or not its own number of records."""
    if loaded is None or settings.records != loaded.examples:
        return None
    return jobs.train.seconds_of(loaded, settings.plan(loaded))


def _noises(
    settings: Settings, made: Plan, loaded: jobs.load.Loaded | None, asked: PlanRequest | None
) -> list[tuple[float, float]]:
    """Pairs (noise-to-signal ratio, records) of the settings with fewer and more records.

    Records ascend. Those without less noise than fewer records have are left out: what the planner
    chooses moves in steps, and more records are worth at least as much.
    """
    found = [(noise_to_signal(made), settings.records)]
    for factor in _SIZES:
        records = round(factor * settings.records)
        persons = settings.persons and round(factor * settings.persons)
        if records < _LEAST_RECORDS or persons == 0:
            continue
        other = replace(settings, records=records, persons=persons)
        with suppress(ValueError):  # too few for the job's batch or groups
            found.append((noise_to_signal(other.plan(loaded, asked)), records))
    found.sort(key=lambda pair: pair[1])
    before = accumulate((noise for noise, _ in found[:-1]), min, initial=math.inf)
    return [pair for pair, least in zip(found, before, strict=True) if pair[0] < least]


def _worth(noise: float, others: list[tuple[float, float]]) -> float | None:
    """The approximate number of records with this noise at the chosen ε, by log-log interpolation.

    Args:
        noise: noise-to-signal ratio. others: pairs of it and the number of records, from
            :func:`_noises`.

    Returns:
        None outside of the numbers of records that were planned, or where there is no other.
    """
    if len(others) < 2 or not others[-1][0] <= noise <= others[0][0]:
        return None
    x, y = np.log(others[::-1]).T
    return float(np.exp(np.interp(math.log(noise), x, y)))


def _cost(one: Forecast) -> dict[str, Any]:
    """The forecast and the loss on public tables, JSON-ready."""
    measured = one.measured and [one.measured.most, one.measured.runs]
    names = ("without", "expected", "lost", "records_needed")
    return {"measured": measured, **{name: getattr(one, name) for name in names}}

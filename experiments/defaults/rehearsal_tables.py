"""What the kept pairs of rehearsals.py say: rehearsals.md, and the scores that are bundled."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fresh_pairs import ANOTHER_SOURCE
from pairs import RELATIONS
from scipy.stats import binomtest

from forethought.utility import rehearsal
from forethought.utility.rehearsal import LEVEL, calibrated, score

Row = dict[str, Any]
Interval = tuple[float, float]
CALLED = {"linear": "linear", "mlp": "perceptron", "cnn": "convolutional"}
BY = {"linear": "linear", "mlp": "mlp", "cnn": "mlp"}  # whose pairs are calibrated on
OFFERED = RELATIONS[:2]


def rows_of(rows: Iterable[Row], model: str, relation: str, fresh: bool) -> list[Row]:
    """The pairs that could be rehearsed."""
    return [
        row
        for row in rows
        if (row["model"], row["relation"], row["split"] == "fresh") == (model, relation, fresh)
        and "low" in row
    ]


def set_of(row: Row) -> str:
    """The data set that a pair is made of."""
    return str(row["pair"]).split(",")[0]


def scores_of(rows: Iterable[Row], model: str, relation: str) -> dict[str, list[float]]:
    """Scores of the pairs that are looked at, by data set, as they are bundled: rounded up."""
    found: dict[str, list[float]] = {}
    for row in rows_of(rows, model, relation, fresh=False):
        one = score((row["low"], row["high"]), row["achieved"])
        found.setdefault(set_of(row), []).append(math.ceil(1000 * one - 1e-9) / 1000)
    return {name: sorted(found[name]) for name in sorted(found)}


def interval(row: Row, scores: Mapping[str, Sequence[float]]) -> Interval:
    """A pair's interval of 90 %, by the rule: never narrower than its run's own."""
    low, high = row["low"], row["high"]
    found = calibrated((low, high), scores, LEVEL) or (0.0, 1.0)
    return min(low, found[0]), max(high, found[1])


def constants(rows: list[Row]) -> None:
    """Write the bundled scores, one data set a line, and print how often intervals held."""
    lines = []
    for model in ("linear", "mlp"):
        relations = []
        for relation in OFFERED:
            sets = scores_of(rows, model, relation).items()
            told = ",\n".join(f"      {json.dumps(name)}: {json.dumps(of)}" for name, of in sets)
            relations.append(f"    {json.dumps(relation)}: {{\n{told}\n    }}")
        lines.append(f"  {json.dumps(CALLED[model])}: {{\n" + ",\n".join(relations) + "\n  }")
    path = Path(rehearsal.__file__).with_name("rehearsal.json")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for model, called in CALLED.items():
        for relation in OFFERED:
            found = rows_of(rows, model, relation, fresh=True)
            print(called, relation, f"{inside(rows, found)} of {len(found)} fresh pairs")


def ends(rows: list[Row], found: Iterable[Row]) -> list[Interval]:
    """The intervals of fresh pairs."""
    known = {
        (model, name): scores_of(rows, BY[model], name) for model in CALLED for name in OFFERED
    }
    return [
        interval(
            row,
            known[
                row["model"],
                "same task" if row["relation"] == ANOTHER_SOURCE else row["relation"],
            ],
        )
        for row in found
    ]


def held(found: list[Row], intervals: list[Interval]) -> list[bool]:
    """Which pairs' intervals hold what was achieved."""
    return [
        low <= row["achieved"] <= high for row, (low, high) in zip(found, intervals, strict=True)
    ]


def inside(rows: list[Row], found: list[Row]) -> int:
    """How many fresh pairs' intervals do."""
    return sum(held(found, ends(rows, found)))


HEADER = (
    "| model, relation | pairs | data sets | achieved inside | share, 95 % interval | "
    "mean over sets, ± standard error | inside the run's own interval | median width, points | "
    "mean width | median error | largest error |\n"
    "| --- | ---: | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | --- |"
)


def line(called: str, found: list[Row], intervals: list[Interval]) -> str:
    """What some pairs say, as a row of a table."""
    holds = held(found, intervals)
    of_sets: dict[str, list[bool]] = {}
    for row, one in zip(found, holds, strict=True):
        of_sets.setdefault(set_of(row), []).append(one)
    shares = [100 * statistics.fmean(of) for of in of_sets.values()]
    error = statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    widths = [100 * (high - low) for low, high in intervals]
    errors = [100 * abs(row["predicted"] - row["achieved"]) for row in found]
    worst = found[int(np.argmax(errors))]
    alone = sum(row["low"] <= row["achieved"] <= row["high"] for row in found)
    cells = (
        called,
        len(found),
        len(of_sets),
        sum(holds),
        said(sum(holds), len(holds)),
        f"{statistics.fmean(shares):.0f}% ± {error:.0f}",
        alone,
        f"{statistics.median(widths):.1f}",
        f"{statistics.fmean(widths):.1f}",
        f"{statistics.median(errors):.1f}",
        f"{max(errors):.1f} ({worst['pair']})",
    )
    return f"| {' | '.join(map(str, cells))} |"


def said(count: int, of: int) -> str:
    """A share with its exact binomial interval."""
    found = binomtest(count, of).proportion_ci(0.95)
    return f"{count / of:.0%}, {found.low:.0%} to {found.high:.0%}"


def page(rows: list[Row]) -> str:
    """Both tables, as markdown."""
    made = (
        "Made by `python experiments/defaults/rehearsals.py`. Intervals of 90 % by the rule of "
        "fresh_pairs.py."
    )
    return "\n".join([made, "", *_fresh(rows), *_looked_at(rows), ""])


def _fresh(rows: list[Row]) -> list[str]:
    if not any(row["split"] == "fresh" for row in rows):
        return []
    lines = [
        "## Fresh pairs, which nothing is calibrated on",
        "",
        HEADER,
    ]
    details = []
    for model, called in CALLED.items():
        both: list[Row] = []
        for relation in OFFERED:
            found = rows_of(rows, model, relation, fresh=True)
            if not found:
                continue
            both += found
            lines.append(line(f"{called}, {relation}", found, ends(rows, found)))
            details.append(f"- {called}, {relation}: {_by(found, ends(rows, found), set_of)}.")
        if not both:
            continue
        lines.append(line(f"{called}, both", both, ends(rows, both)))
        details.append(f"- {called}, both: {_by(both, ends(rows, both), _epsilon)}.")
        other = rows_of(rows, model, ANOTHER_SOURCE, fresh=True)
        if other:
            lines.append(line(f"{called}, another source", other, ends(rows, other)))
    return [*lines, "", "Inside, by data set and by ε:", "", *details, ""]


def _epsilon(row: Row) -> str:
    return f"ε = {row['epsilon']:g}"


def _by(found: list[Row], intervals: list[Interval], key: Any) -> str:
    of_keys: dict[str, list[bool]] = {}
    for row, one in zip(found, held(found, intervals), strict=True):
        of_keys.setdefault(key(row), []).append(one)
    return "; ".join(f"{name} {sum(of)} of {len(of)}" for name, of in sorted(of_keys.items()))


def _looked_at(rows: list[Row]) -> list[str]:
    lines = [
        "## Pairs looked at, calibrated on the other data sets",
        "",
        "Every data set in turn is left out, and its pairs' intervals are calibrated on the eleven "
        "others.",
        "",
        HEADER,
    ]
    for model in ("linear", "mlp"):
        for relation in RELATIONS:
            found = rows_of(rows, model, relation, fresh=False)
            scores = scores_of(rows, model, relation)
            if not found:
                continue
            intervals = [
                interval(row, {name: of for name, of in scores.items() if name != set_of(row)})
                for row in found
            ]
            lines.append(line(f"{CALLED[model]}, {relation}", found, intervals))
    refused = sum("refused" in row for row in rows)
    return [
        *lines,
        "",
        f"{refused} pairs could not be rehearsed: their tables, cut to a few columns, hold records "
        "twice.",
    ]

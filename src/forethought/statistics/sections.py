"""Statistics from the ``[[statistics]]`` sections of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from forethought.data.columns import Category, Column, Number
from forethought.statistics.curves import AUC, Quantiles, Survival
from forethought.statistics.kinds import Accuracy, Count, Histogram, Mean, Statistic, Sum
from forethought.values.checks import suggestion

KINDS: dict[str, type[Statistic]] = {
    one.kind: one for one in (Count, Sum, Mean, Histogram, Quantiles, Survival, AUC, Accuracy)
}


def statistic(values: Mapping[str, Any], declared: Mapping[str, Column] | None = None) -> Statistic:
    """The statistic of a ``[[statistics]]`` section.

    Args:
        values: ``kind`` and the arguments of the kind.
        declared: declared columns, as in a job's ``[data.columns]``; they give the range or the
            categories that the section leaves out.

    Raises:
        ValueError, TypeError: an unknown kind or key (the message suggests the nearest one), or a
            wrong declaration.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"[[statistics]] is a table of keys, not {type(values).__name__}")
    given = dict(values)
    word = given.pop("kind", None)
    if str(word) not in KINDS:  # a list has no hash
        text = "kind is missing" if word is None else f"kind = {word!r} is unknown"
        near = suggestion(str(word), KINDS)
        raise ValueError(f"[[statistics]]: {text}: {near}")
    chosen = KINDS[word]
    names = [one.name for one in fields(chosen)]
    for key in given:
        if key not in names:
            raise ValueError(
                f"[[statistics]] of kind {word!r}: unknown {key!r}: {suggestion(key, names)}"
            )
    open_keys = {one.name for one in fields(chosen) if one.default is not MISSING} - set(given)
    column = (declared or {}).get(str(given.get("column", given.get("score", ""))))
    if isinstance(column, Number) and "range" in open_keys and "categories" not in given:
        given["range"] = (column.low, column.high)
    if isinstance(column, Category) and "categories" in open_keys and "range" not in given:
        given |= {"categories": column.words, "other": given.get("other", column.other)}
    return chosen(**given)

"""A Statement from its JSON text: each entry is read and compared with what follows from others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from forethought.accounting.about import About
from forethought.accounting.assumptions import Randomness
from forethought.accounting.interval import Interval
from forethought.accounting.releases import Release
from forethought.accounting.statement import (
    STATEMENT_SCHEMA,
    Statement,
    StatementError,
    registered,
)
from forethought.caveats import Caveat
from forethought.checks import real, whole
from forethought.mechanism import Mechanism
from forethought.serialisation import digest, exact_keys, parse
from forethought.signing import Signature


def read(text: str) -> Statement:
    """A statement from its JSON text.

    Raises:
        StatementError: not a statement, another schema version, or edited by hand.
    """
    try:
        return _statement(parse(text))
    except StatementError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StatementError(f"not a statement: {error!s}") from error


def _statement(values: Any) -> Statement:
    if not isinstance(values, dict) or values.get("schema") != STATEMENT_SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else type(values).__name__
        maker = values.get("version") if isinstance(values, dict) else None
        by = f"; it was made by forethought {maker}, which can verify it" if maker else ""
        raise StatementError(
            f"not a statement this version can read: schema {found!r}, expected "
            f"{STATEMENT_SCHEMA!r}{by}"
        )
    content = dict(values)
    signature = content.pop("signature", None)
    checksum = content.pop("checksum", None)
    if checksum != digest(content):
        raise StatementError("the statement was edited after it was made: its checksum differs")
    registered(content["accountant"])
    exact_keys("epsilon", content["epsilon"], {"lower", "upper"})
    attack = []
    for row in content["attack"]:
        exact_keys("attack", row, {"false_positive_rate", "true_positive_rate"})
        attack.append(tuple(real(name, row[name], least=0, most=1) for name in _ATTACK))
    statement = Statement(
        mechanism=Mechanism.from_dict(content["mechanism"]),
        delta=real("delta", content["delta"], above=0, below=1),
        epsilon=Interval(*(_end(content["epsilon"][end]) for end in ("lower", "upper"))),
        group=whole("group", content["group"]),
        attack=tuple((rate, power) for rate, power in attack),
        accountant=dict(content["accountant"]),
        randomness=Randomness.from_dict(content["randomness"]),
        caveats=tuple(map(Caveat.from_dict, content["caveats"])),
        releases=tuple(map(Release.from_dict, content["releases"])),
        examples=_optional(whole, "examples", content["examples"]),
        clip_norm=_optional(_positive, "clip_norm", content["clip_norm"]),
        plan=_optional(_text, "plan", content["plan"]),
        version=_text("version", content["version"]),
        signature=None if signature is None else Signature.from_dict(signature),
        about=About.from_dict(content["about"]) if "about" in content else None,
    )
    _same_content(statement.content(), content)
    return statement


def _same_content(made: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Everything that follows from other entries says what follows from them."""
    exact_keys("statement", found, set(made))
    for name, value in made.items():
        if value != found[name] or type(value) is not type(found[name]):
            raise StatementError(
                f"the statement was edited after it was made: its {name} is not what follows from "
                f"its other entries. Found {_short(found[name])}, expected {_short(value)}"
            )


_ATTACK = ("false_positive_rate", "true_positive_rate")


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _end(value: object) -> float:
    return math.inf if value == "infinity" else real("epsilon", value, least=0)


def _positive(name: str, value: object) -> float:
    return real(name, value, above=0)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")
    return value


def _optional(read: Any, name: str, value: object) -> Any:
    return None if value is None else read(name, value)

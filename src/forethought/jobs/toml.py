"""Tables as TOML text: Python reads TOML and does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values (text, numbers, truth values, lists and mappings of them) as TOML.

    >>> print(to_toml({"data": {"source": "digits"}, "model": {"hidden": [32, 16]}}), end="")
    [data]
    source = "digits"
    <BLANKLINE>
    [model]
    hidden = [32, 16]
    """
    sections = []
    for name, values in tables.items():
        if values:
            rows = [f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items()]
            sections.append("\n".join([f"[{toml_key(name)}]", *rows]))
    return "\n\n".join(sections) + "\n"


def toml_key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else _text(name)


def toml_value(value: Any) -> str:
    """A value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Mapping():
            return (
                "{" + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
            )
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case _:
            return _text(str(value))


def _text(value: str) -> str:
    # The escapes of JSON are TOML's too, but for the one control character it leaves bare.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

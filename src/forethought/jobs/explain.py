"""Validation errors of a job file in its author's words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel

_WANTED = "input should be "  # as pydantic begins
# The kind of value that was tried, which pydantic puts behind the key as if it were one below it.
_TRIED = re.compile(r"(constrained-|literal\[|(str|int|float|bool|tuple|list|dict)(\[|$))")


def explain_errors(name: str, text: str, rows: Sequence[Any], root: type[BaseModel]) -> str:
    """Validation errors in the user's words; where a value may be several things, all in one."""
    found: dict[str, list[str]] = {}
    for row in rows:
        place = row["loc"]
        place = place[:-1] if _TRIED.match(str(place[-1])) else place
        where, _, wanted = explain_error(name, text, {**row, "loc": place}, root).partition(_WANTED)
        found.setdefault(where, []).append(wanted)
    return "; ".join(
        f"{where}{_WANTED if any(wanted) else ''}{', or '.join(dict.fromkeys(wanted))}"
        for where, wanted in found.items()
    )


def explain_error(name: str, text: str, row: Any, root: type[BaseModel]) -> str:
    """One validation error in the user's words: file, line, key, what is allowed."""
    place = [str(part) for part in row["loc"]]
    line = _line_of(text, place)
    where = f"{name}, line {line}: " if line else f"{name}: " if name else ""
    key = ".".join(place)
    if row["type"] == "extra_forbidden":
        known = _known_keys(place[:-1], root)
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return f"{where}unknown key {key!r}; {hint}"
    if row["type"] == "missing":
        return f"{where}{key!r} is missing"
    found = row.get("input")
    bounds = row.get("ctx", {})
    for bound, words in (("ge", "at least"), ("le", "at most")):
        if bound in bounds:  # pydantic writes 1e-60 with sixty noughts
            return f"{where}{key} = {found!r}: must be {words} {bounds[bound]:g}"
    return f"{where}{key} = {found!r}: {row['msg'][:1].lower()}{row['msg'][1:]}"


def _known_keys(place: list[str], root: type[BaseModel]) -> list[str]:
    section = root
    for part in place:
        inner = section.model_fields[part].annotation if part in section.model_fields else None
        # A section that may be left out is one of several things, a model among them.
        inner = next((kind for kind in get_args(inner) if isinstance(kind, type)), inner)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        section = inner
    return list(section.model_fields)


def _line_of(text: str, place: list[str]) -> int | None:
    # tomllib keeps no positions; a job file is flat enough to find the key under its table.
    table: list[str] = []
    header_line = None
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header:
            table = [part.strip().strip("\"'") for part in header.group(1).split(".")]
            if table == place or (header_line is None and table == place[:-1]):
                header_line = number
            continue
        key = re.match(r"\s*([\w.\-\"']+)\s*=", line)
        if key:
            path = [*table, *(part.strip("\"'") for part in key.group(1).split("."))]
            if path == place[: len(path)] and len(path) >= min(len(place), len(table) + 1):
                return number
    return header_line

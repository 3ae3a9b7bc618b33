"""Files that the page saves: a plan, or a job with the plan's budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forethought.jobs.request import to_toml
from forethought.web.planner import SettingError, Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(json|toml)")
# What a job needs besides, for its author to fill in.
_TABLE = {"source": "csv:your-table.csv", "label": "your-label"}


@dataclass(frozen=True)
class Place:
    """The place where files are saved, and the job that they are for.

    Args:
        folder: that exists. job: the tables of a job file to put the numbers into; None: there is
            no job yet. notes: what the page says of the job's data.
    """

    folder: Path
    job: Mapping[str, Mapping[str, Any]] | None = None
    notes: tuple[str, ...] = ()

    def save(self, name: str, settings: Settings) -> Path:
        """Write ``NAME.json``, the plan, or ``NAME.toml``, a job; never over a file.

        Raises:
            SettingError: another kind of name, or one that there is. OSError: it cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"a file's name is letters, digits, - and _, then .json for a plan or .toml for a "
                f"job, not {name!r}"
            )
        text = self._job(settings) if name.endswith(".toml") else settings.plan().to_json() + "\n"
        path = self.folder / name
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise SettingError(f"{path} exists: give another name") from None
        return path

    def _job(self, settings: Settings) -> str:
        tables = {name: dict(values) for name, values in (self.job or {"data": _TABLE}).items()}
        budget = {"epsilon": settings.epsilon}
        if settings.delta is not None:
            budget["delta"] = settings.delta
        tables["budget"] = budget
        training = tables.setdefault("training", {})
        for length in ("epochs", "rounds"):
            training.pop(length, None)
        if settings.epochs is not None:
            training["epochs"] = settings.epochs
        if settings.records_per_person > 1:
            tables["data"].setdefault("records_per_person", settings.records_per_person)
        head = (
            ""
            if self.job
            else ("# Name your table and its label; forethought init TABLE writes its columns.\n")
        )
        return head + to_toml(tables)

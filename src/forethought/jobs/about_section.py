"""``[about]`` of a job: what the Statement says of it in its owner's words."""

from __future__ import annotations

import datetime

from pydantic import BaseModel, ConfigDict, Field, StrictStr, field_validator

from forethought.accounting.about import LONGEST, About

_Line = Field(default=None, min_length=1, max_length=LONGEST)


class AboutSection(BaseModel):
    """Which data, of which date, what for, and who answers for it. Nobody checks any of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: StrictStr | None = _Line
    date: StrictStr | None = _Line
    purpose: StrictStr | None = _Line
    responsible: StrictStr | None = _Line

    @field_validator("date", mode="before")
    @classmethod
    def _of_toml(cls, value: object) -> object:
        # TOML has dates of its own.
        return value.isoformat() if isinstance(value, datetime.date) else value

    @field_validator("data", "date", "purpose", "responsible")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and (not value.isprintable() or not value.strip()):
            raise ValueError("must be one line of text")
        return value

    def about(self) -> About | None:
        """The same for a Statement; None where nothing is said."""
        values = self.model_dump()
        return About(**values) if any(values.values()) else None

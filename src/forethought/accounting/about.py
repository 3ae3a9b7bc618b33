"""What a Statement is about, as its owner says: nothing of it follows from a mechanism."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from forethought.serialisation import exact_keys

# Of one entry: a line on a page.
LONGEST = 500
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class About:
    """Which data, what for, who answers for it, and which model file.

    Args:
        data: what the data are called.
        date: of the data or of the run, as the owner wants it named.
        purpose: what the model is for.
        responsible: who answers for it.
        model: ``sha256:`` and the hash of the model file; a run with a folder writes it.

    Raises:
        ValueError, TypeError: no text, several lines, or too long; a hash in another form.
    """

    data: str | None = None
    date: str | None = None
    purpose: str | None = None
    responsible: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"about {name} must be text, not {value!r}")
            if not value.strip() or len(value) > LONGEST or not value.isprintable():
                raise ValueError(f"about {name} must be one line of at most {LONGEST} characters")
        if self.model is not None and not _HASH.fullmatch(self.model):
            raise ValueError(f"about model must be sha256: and 64 digits, not {self.model!r}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, every entry."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Any) -> About:
        """The inverse of :meth:`to_dict`."""
        exact_keys("about", values, {field.name for field in fields(cls)})
        return cls(**values)

    def lines(self) -> list[tuple[str, str]]:
        """Pairs (what, as its owner says), of what was given."""
        words = {
            "data": "Data",
            "date": "Date",
            "purpose": "Purpose",
            "responsible": "Responsible",
            "model": "Model file",
        }
        return [(word, getattr(self, name)) for name, word in words.items() if getattr(self, name)]

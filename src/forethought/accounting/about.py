"""What a Statement is about, as its owner says, and which files it rests on, by hash.

Nothing of it follows from a mechanism.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from forethought.serialisation import digest, exact_keys

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


# Files that a statement rests on: so many at most, of plain names.
_MOST_FILES = 20
# Those that a run on one machine writes, and those of several holders; none is left out.
OF_RUN = ("plan.json", "transcript.json", "phases.json", "job.toml", "model.json", "prepared.json")
OF_HOLDERS = ("federation.json", "gossip.json", "policy.json", "roster.json")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(json|toml)")


@dataclass(frozen=True)
class Evidence:
    """What the statement of a run rests on; a copy beside other files is not of their run.

    Args:
        code: hash of the library's source code (:func:`code_digest`).
        files: name → ``sha256:`` and the hash of a file beside the statement: plan, transcript,
            what was declared of the data, what several holders agreed on.

    Raises:
        ValueError, TypeError: names with a path in them, hashes in another form.
    """

    code: str
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if not isinstance(self.files, Mapping) or len(self.files) > _MOST_FILES:
            raise TypeError(f"evidence files must be an object of at most {_MOST_FILES} names")
        for name in self.files:
            if not isinstance(name, str) or not _FILE.fullmatch(name) or name == "statement.json":
                raise ValueError(f"evidence must be files beside the statement, not {name!r}")
        for value in (self.code, *self.files.values()):
            if not isinstance(value, str) or not _HASH.fullmatch(value):
                raise ValueError(f"evidence must be sha256: and 64 digits, not {value!r}")

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Evidence:
        """Of the contents of files, under this code."""
        return cls(code_digest(), {name: content_hash(data) for name, data in files.items()})

    @classmethod
    def from_dict(cls, values: Any) -> Evidence:
        """From a JSON object that has exactly the fields."""
        exact_keys("evidence", values, {field.name for field in fields(cls)})
        return cls(**values)


def content_hash(content: bytes) -> str:
    """``sha256:`` and the hash, as statements name files."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@cache
def code_digest() -> str:
    """Hash of the names and contents of the library's source files, as they are installed."""
    root = Path(__file__).parents[1]
    return digest(
        {
            path.relative_to(root).as_posix(): content_hash(path.read_bytes())
            for path in root.rglob("*.py")
        }
    )

"""The one error for data that cannot be used."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """Data that is missing, damaged or unsuitable: the message names the file and what is wrong."""

    @classmethod
    def unexpected(cls, path: Path | str, found: object, expected: object) -> DataError:
        """The error that says what a file holds and what it should hold."""
        return cls(f"{path}: found {found}, expected {expected}")

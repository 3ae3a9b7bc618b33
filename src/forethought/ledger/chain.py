"""Entries chained by hash and signed, and what a book must look like after them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def verify_export(text: str, *, head: str | None = None, key: Path | None = None) -> Sequence[str]:
    """Problems of a book's JSON export, found without its database; none: an empty list.

    Args:
        head: a hash that must be in the chain, such as a statement's.
        key: PEM file of the key (public or private) that must have signed every entry; None: the
            one that the book names, which shows only that nothing was changed since.
    """
    raise NotImplementedError

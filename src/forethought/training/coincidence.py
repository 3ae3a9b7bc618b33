"""Whether held-out records are records that were trained on: found by hashes of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch

from forethought.rounds.records import Records, content

PIECE = 1024


class CoincidingRecordsError(ValueError):
    """Held-out records are the training records."""


def coincide(records: Records, held_out: Records, name: str = "test") -> bool:
    """Whether some held-out records are equal to training records, targets included.

    Raises:
        CoincidingRecordsError: they are the same records; or more than half of them are, where the
            training records themselves are mostly different from each other.
    """
    own, others = list(_digests(records)), list(_digests(held_out))
    trained = set(own)
    found = sum(digest in trained for digest in others)
    # Where records take few values, as binary features do, equal ones are no sign of anything.
    telling = len(trained) > len(own) / 2
    if (telling and found > len(others) / 2) or sorted(others) == sorted(own):
        raise CoincidingRecordsError(
            f"{found} of the {len(held_out)} records in {name}= are also trained on: accuracy on "
            "them says nothing about new records. Hold records out before training; loss on "
            "training batches is in diagnostics"
        )
    return found > 0


def _digests(records: Records) -> Iterator[bytes]:
    for start in range(0, len(records), PIECE):
        indices = np.arange(start, min(start + PIECE, len(records)))
        leaves = [
            leaf
            for leaf in torch.utils._pytree.tree_leaves(records.take(indices))
            if isinstance(leaf, torch.Tensor)
        ]
        rows = [_rows(leaf, len(indices)) for leaf in leaves]
        for place in range(len(indices)):
            row = b"".join(part[place] for part in rows)
            yield hashlib.blake2b(row, digest_size=16).digest()


def _rows(leaf: torch.Tensor, count: int) -> list[bytes]:
    raw = content(leaf)
    width = len(raw) // count
    return [raw[place * width : (place + 1) * width] for place in range(count)]

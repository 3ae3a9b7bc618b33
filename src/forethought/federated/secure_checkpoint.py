"""Where training behind masks stands between two rounds, so that it goes on after an interruption.

A round that was cut off is computed again on the same weights with the same noise, so nothing is
released twice. The masks are other ones; they cancel in every sum that is opened.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forethought.exchange.messages import Vector
from forethought.exchange.storing import Storage
from forethought.federated.server_optimizers import Moments

STATE = "secure-state"
_MOMENT = "moment/"


@dataclass
class Standing:
    """What the next round begins with.

    Args:
        weights: of the newest model. average: the reported one, where models are averaged.
        index: rounds so far. version: models so far. moments: of the server's optimizer.
        survivors: of every round so far. transcripts: of each client, as plain values.
        clip_norms: of each client's next round.
    """

    weights: Vector
    average: Vector | None = None
    index: int = 0
    version: int = 0
    moments: Moments = field(default_factory=dict)
    survivors: list[tuple[int, ...]] = field(default_factory=list)
    transcripts: list[Any] = field(default_factory=list)
    clip_norms: list[float] = field(default_factory=list)

    def save(self, storage: Storage) -> None:
        """Keep it in one atomic write."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        arrays: dict[str, Any] = {
            "plain": np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8),
            "weights": self.weights,
            **{_MOMENT + name: value for name, value in self.moments.items()},
        }
        if self.average is not None:
            arrays["average"] = self.average
        content = io.BytesIO()
        np.savez(content, **arrays)
        storage.replace(STATE, content.getvalue())

    @classmethod
    def load(cls, storage: Storage) -> Standing | None:
        """What was kept; None: nothing."""
        content = storage.read(STATE)
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as held:
            arrays: Mapping[str, Any] = {name: held[name] for name in held.files}
        plain = json.loads(arrays["plain"].tobytes())
        plain["survivors"] = [tuple(clients) for clients in plain["survivors"]]
        moments = {
            name.removeprefix(_MOMENT): array
            for name, array in arrays.items()
            if name.startswith(_MOMENT)
        }
        return cls(arrays["weights"], arrays.get("average"), moments=moments, **plain)


_PLAIN = ("index", "version", "survivors", "transcripts", "clip_norms")

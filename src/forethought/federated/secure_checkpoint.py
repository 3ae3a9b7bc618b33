"""The state of training behind masks between two rounds, so that it goes on after an interruption.

A round that was cut off is computed again on the same weights. A client's sum that comes out the
same has the same noise, so nothing is released twice; another one is one more release, which the
list of releases shows and the transcript counts. The masks are other ones; they cancel in every sum
that is opened.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forethought.exchange.messages import Vector
from forethought.exchange.storage import Storage
from forethought.federated.server_optimizers import Moments

STATE, RELEASED = "secure-state", "secure-released"
_MOMENT = "moment/"


@dataclass
class Standing:
    """The state that the next round begins with.

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
        """The state that was kept; None: nothing."""
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


class SecureReleases:
    """The possible releases of each client, in a list that only grows; see :class:`Standing`."""

    # Client and round, 8 bytes each, and what the noise is bound to, 32 bytes.
    _ENTRY = 48

    def __init__(self, storage: Storage) -> None:
        content = storage.read(RELEASED) or b""
        whole = len(content) - len(content) % self._ENTRY
        if whole != len(content):  # torn by a kill, before its noise was drawn
            storage.replace(RELEASED, content[:whole])
        self._storage = storage
        self._known: dict[bytes, set[bytes]] = {}
        for start in range(0, whole, self._ENTRY):
            entry = content[start : start + self._ENTRY]
            self._known.setdefault(entry[:16], set()).add(entry[16:])

    def note(self, client: int, index: int, bound: bytes) -> int:
        """Write a release down before its noise is drawn; how many there are with this one.

        Args:
            client: its place. index: of its round. bound: what its noise is bound to, 32 bytes.
        """
        place = client.to_bytes(8, "little") + index.to_bytes(8, "little")
        known = self._known.setdefault(place, set())
        if bound not in known:
            self._storage.append(RELEASED, place + bound)
            known.add(bound)
        return len(known)


_PLAIN = ("index", "version", "survivors", "transcripts", "clip_norms")

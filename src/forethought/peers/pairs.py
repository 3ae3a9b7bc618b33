"""Neighbours over torch.distributed: a gloo group for each pair, and threads that stay.

The default process group does not survive a death, and a time-out on one of gloo's operations
breaks its connection for good. So every two neighbours have a group of their own, made from the
store alone, whose operations wait for ever; each pair has one thread that receives and one that
sends; and who is living is told by signs of life, not by operations that fail.

A group that broke is made anew: a pair's name in the store holds how often each side has begun, and
how many groups of the pair it has left since.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from forethought.exchange.codec import DecodeError
from forethought.peers import wire
from forethought.peers.links import BEAT_EVERY, Arrived, Deliver, Reduce, Refused

# Torch's type stubs do not know that a group sends and receives.
_Group: TypeAlias = Any
_FOR_EVER = timedelta(days=365)
# Seconds to make a group once both sides are there, and between two looks for the other side.
_MEET, _LOOK = 20.0, 0.2
# Seconds after which a neighbour that says nothing counts as stopped.
_SILENT = 10 * BEAT_EVERY
# Messages on their way to one neighbour; a stopped one must not fill the memory.
_QUEUE = 8
# Gloo's tags: who asks for one before it is sent gets no other.
_HEADERS, _FLOATS, _HALVES = range(3)
# In place of a message: the present sign, or the last word.
_SIGN, _LAST = object(), object()


class StoreError(ConnectionError):
    """The workers' meeting place cannot be reached."""


@dataclass(frozen=True)
class Meeting:
    """The place where workers find each other: a store of torch's, which must live as long as any
    may come.

    Args:
        host, port: of the store. run: of the gossip, which others must have as well.
        seconds: to reach the store.
    """

    host: str
    port: int
    run: bytes = b""
    seconds: float = 60.0

    def store(self) -> Store:
        """A connection of one's own: a waiting one blocks whoever shares it.

        Raises:
            StoreError: nobody answers there.
        """
        try:
            found = TCPStore(
                self.host,
                self.port,
                is_master=False,
                timeout=timedelta(seconds=self.seconds),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            raise StoreError(
                f"no store of torch.distributed answers at {self.host}:{self.port}: start all "
                f"workers with torchrun, or with the same MASTER_ADDR and MASTER_PORT ({error})"
            ) from None
        return PrefixStore("gossip", found)


class GlooPairs:
    """Links to some workers; see :class:`~forethought.peers.links.Links`.

    Args:
        meeting: where workers find each other. me: own place. peers: the neighbours'.
        most: entries of every vector that comes.
        largest: norm beyond which a vector is refused.

    Raises:
        StoreError: no store there.

    Attributes:
        life: how often this worker has begun, this time included.
        reduce: see Links.
    """

    def __init__(
        self, meeting: Meeting, me: int, peers: Iterable[int], most: int, largest: float
    ) -> None:
        self.meeting, self.me = meeting, me
        self.reduce: Reduce | None = None
        self.most, self.largest = most, largest
        store = meeting.store()
        store.set(f"run/{me}", meeting.run.hex())
        self.life = int(store.add(f"life/{me}", 1))
        self._pairs = {peer: _Pair(self, peer) for peer in peers}

    def start(self, deliver: Deliver) -> None:
        """See Links."""
        for pair in self._pairs.values():
            pair.start(deliver)

    def send(self, to: int, message: Any) -> None:
        """See Links."""
        self._pairs[to].put(message)

    def heard(self, peer: int) -> float | None:
        """See Links."""
        return self._pairs[peer].heard

    def finish(self) -> None:
        """See Links."""
        for pair in self._pairs.values():
            pair.finish()

    def over(self, peer: int) -> bool:
        """See Links."""
        return self._pairs[peer].over

    def close(self, seconds: float) -> None:
        """See Links. A living neighbour's last word is waited for longer, only a stopped one's not.

        A thread that comes back from gloo while its process ends has the process aborted: only one
        that waits for a stopped neighbour may be left to the process's end.
        """
        until = time.monotonic() + seconds
        for pair in self._pairs.values():
            pair.end()
        for pair in self._pairs.values():
            pair.join(until)
        for pair in self._pairs.values():
            pair.join_while_heard(time.monotonic() + 2 * _MEET)


class _Pair:
    """One neighbour: its group, the thread that receives, the thread that sends."""

    def __init__(self, links: GlooPairs, peer: int) -> None:
        self._links, self._peer = links, peer
        self._other = 0 if peer < links.me else 1  # rank in the pair
        self._low, self._high = sorted((links.me, peer))
        self.heard: float | None = None
        self.over = False
        self._sign = wire.BEAT
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._outgoing: queue.Queue[Any] | None = None
        self._lock = threading.Lock()

    def start(self, deliver: Deliver) -> None:
        name = f"gossip-with-{self._peer}"
        thread = threading.Thread(target=self._live, args=(deliver,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def put(self, message: Any) -> None:
        """Queue a message, or one of the signs; where the queue is full it is lost."""
        with self._lock:
            if self._outgoing is not None:
                with contextlib.suppress(queue.Full):
                    self._outgoing.put_nowait(message)

    def finish(self) -> None:
        self._sign = wire.FINISHED
        self.put(_SIGN)

    def end(self) -> None:
        self._ending.set()
        self.put(_LAST)

    def join(self, until: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def join_while_heard(self, until: float) -> None:
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < until and not self._silent():
                thread.join(_LOOK)

    def _silent(self) -> bool:
        heard = self.heard
        return heard is not None and time.monotonic() - heard > _SILENT

    # ---- the receiving thread, which makes the group and begins the other one

    def _live(self, deliver: Deliver) -> None:
        refused = None
        try:
            store = self._links.meeting.store()
            while not self._ending.is_set():
                lives = self._lives(store)
                if lives is None or lives == refused:
                    self._ending.wait(_LOOK)
                    continue
                if not self._same_run(store, deliver):
                    refused = lives
                    continue
                name = self._name(store, lives)
                if not self._here(store, name):
                    self._ending.wait(_LOOK)
                    continue
                group = self._group(store, name)
                if group is not None and not self._receive(group, deliver):
                    refused = lives
                # Its sockets close with it, so that the other side leaves it, too; both then make
                # another one, under a name that neither has used.
                del group
                store.add(self._turn(self._links.me, self._links.life), 1)
        except (StoreError, RuntimeError) as error:
            # The store is gone: who is connected stays so, and nobody can come back.
            deliver(Refused(self._peer, f"worker {self._peer} cannot be met again: {error}"))

    def _lives(self, store: Store) -> tuple[int, int] | None:
        """The number of times that the pair's lower and higher worker have begun."""
        key = f"life/{self._peer}"
        if not store.check([key]):
            return None
        its, own = int(store.get(key)), self._links.life
        return (own, its) if self._low == self._links.me else (its, own)

    def _same_run(self, store: Store, deliver: Deliver) -> bool:
        if store.get(f"run/{self._peer}") == self._links.meeting.run.hex().encode():
            return True
        text = (
            f"worker {self._peer} has another gossip than worker {self._links.me}: plans, graph, "
            "architecture or first weights differ; start all with the same job"
        )
        deliver(Refused(self._peer, text))
        return False

    def _here(self, store: Store, name: str) -> bool:
        """Say that this side is there; whether the other is."""
        store.set(f"{name}/here/{1 - self._other}", "1")
        return bool(store.check([f"{name}/here/{self._other}"]))

    def _turn(self, worker: int, life: int) -> str:
        """Under which key a side counts the groups of this pair that it has left in this life."""
        return f"turn/{self._low}-{self._high}/{worker}-{life}"

    def _name(self, store: Store, lives: tuple[int, int]) -> str:
        turns = [
            int(store.add(self._turn(worker, life), 0))
            for worker, life in zip((self._low, self._high), lives, strict=True)
        ]
        return f"pair/{self._low}-{self._high}/{lives[0]}-{lives[1]}/{turns[0]}-{turns[1]}"

    def _group(self, store: Store, name: str) -> _Group | None:
        """The pair's group; None where the other side died, or gave up, while it was made."""
        made: list[_Group] = []
        # A waiting store blocks whoever shares it.
        own = PrefixStore(name, self._links.meeting.store())

        def make() -> None:
            with contextlib.suppress(RuntimeError):
                # This time ends the making; every operation of the group is given its own.
                made.append(ProcessGroupGloo(own, 1 - self._other, 2, timedelta(seconds=_MEET)))

        thread = threading.Thread(target=make, daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()
        until = time.monotonic() + _MEET
        while thread.is_alive() and time.monotonic() < until and not self._ending.is_set():
            thread.join(_LOOK)
            lives = self._lives(store)
            if thread.is_alive() and lives is not None and self._name(store, lives) != name:
                break
        return made.pop() if made else None

    def _receive(self, group: _Group, deliver: Deliver) -> bool:  # noqa: PLR0915
        """Take what comes until the group breaks; whether to meet this neighbour again."""
        outgoing: queue.Queue[Any] = queue.Queue(_QUEUE)
        with self._lock:
            self._outgoing = outgoing
        sender = threading.Thread(target=self._send, args=(group, outgoing), daemon=True)
        self._threads.append(sender)
        sender.start()
        self.heard = time.monotonic()
        trusted = True
        # What comes next is asked for before it is sent: then it comes at once, where it would take
        # a question and an answer first. All vectors are of one length.
        most, peer = self._links.most, self._other
        headers = [torch.empty(wire.HEADER, dtype=torch.int64) for _ in range(2)]
        vector = torch.empty(most)
        try:
            coming = group.recv([headers[0]], peer, _HEADERS)
            following = group.recv([vector], peer, _FLOATS)
            while True:
                coming.wait(_FOR_EVER)
                self.heard = time.monotonic()
                read = headers[0].numpy()
                headers.reverse()
                coming = group.recv([headers[0]], peer, _HEADERS)
                kind, length = int(read[1]), wire.length_of(read, most)
                held = None
                if length:
                    if length != most:
                        raise DecodeError(f"a vector of {length} entries, where {most} are due")
                    if wire.halves(read):
                        held = torch.empty(length, dtype=torch.int16)
                        group.recv([held], peer, _HALVES).wait(_FOR_EVER)
                    else:
                        following.wait(_FOR_EVER)
                        held, vector = vector, torch.empty(most)
                        following = group.recv([vector], peer, _FLOATS)
                if kind in (wire.FINISHED, wire.BYE):
                    self.over = True
                if kind == wire.BYE:
                    break
                if kind not in wire.SIGNS:
                    self._deliver(read, held, deliver)
        except RuntimeError:
            pass  # it died, or we are told so
        except DecodeError as error:
            deliver(Refused(self._peer, f"worker {self._peer} says {error}: no more of it is read"))
            trusted = False
        finally:
            self.heard = None
            with self._lock:
                self._outgoing = None
            with contextlib.suppress(queue.Full):
                outgoing.put_nowait(_LAST)
        sender.join()
        return trusted

    def _deliver(self, header: wire.Header, vector: torch.Tensor | None, deliver: Deliver) -> None:
        held = None if vector is None else vector.numpy()
        try:
            message = wire.decode(header, held, self._links.largest)
        except DecodeError as error:
            deliver(Refused(self._peer, f"a message of worker {self._peer} was refused: {error}"))
            return
        deliver(Arrived(self._peer, message))

    # ---- the sending thread

    def _send(self, group: _Group, outgoing: queue.Queue[Any]) -> None:
        with contextlib.suppress(RuntimeError):
            while True:
                try:
                    message = outgoing.get(timeout=BEAT_EVERY)
                except queue.Empty:  # a full queue may have lost the last word
                    message = _LAST if self._ending.is_set() else _SIGN
                if message is _LAST:
                    self._out(group, wire.sign(wire.BYE))
                    return
                if message is _SIGN:
                    self._out(group, wire.sign(self._sign))
                else:
                    self._out(group, *wire.encode(message))

    def _out(self, group: _Group, header: wire.Header, vector: Any = None) -> None:
        going = [group.send([torch.from_numpy(header)], self._other, _HEADERS)]
        if vector is not None:
            held = vector if vector.flags.writeable else vector.copy()
            tag = _HALVES if wire.halves(header) else _FLOATS
            going.append(group.send([torch.from_numpy(held)], self._other, tag))
        for one in going:
            one.wait(_FOR_EVER)

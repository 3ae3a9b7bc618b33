"""Ray: join a cluster, compute in its processes, and run a gossip's workers as its actors.

Ray is an extra: ``pip install 'forethought[ray]'``. A message is one call of the neighbour's actor,
with the same bytes as between sites, but unsigned: the identity of a caller inside the cluster is
trusted, and its messages are checked all the same. A call that fails shows at once that a worker is
dead; a call without an answer shows that it is stopped.

Ray restarts an actor that died on the same node, because its ledger and its secrets are in a folder
there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from forethought.exchange.messages import KINDS, DecodeError, encode, judged, number_of
from forethought.gossip.gossip import Gossip
from forethought.holders.links import (
    BEAT_EVERY,
    Arrived,
    Deliver,
    PeersError,
    Reduce,
    RefusedMessage,
    Stop,
)
from forethought.holders.simulator import HolderError

T = TypeVar("T")


NAMESPACE = "forethought"


# Ray reads it when it is loaded; with 0, a cluster that this process starts listens on 127.0.0.1
# only.
_OPEN = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def engine() -> Any:
    """The module ``ray``.

    Raises:
        HolderError: it is not installed.
    """
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise HolderError(
            "a cluster needs Ray, which is not installed: pip install 'forethought[ray]'"
        ) from None


@contextlib.contextmanager
def cluster(address: str | None, workers: int) -> Iterator[None]:
    """Join a Ray cluster, or start one on this machine that ends with the context.

    Args:
        address: of a cluster ("auto": the one that runs here); None: start one.
        workers: number of processes that will be started.

    Raises:
        HolderError: Ray is not installed, no cluster answers, or it has fewer cores than workers.
    """
    if address is None and "ray" not in sys.modules:
        os.environ.setdefault(_OPEN, "0")
    ray = engine()
    with contextlib.ExitStack() as held:
        if not ray.is_initialized():  # otherwise the caller did it, and also shuts Ray down
            options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False}
            if address is None:
                there = os.cpu_count() or 1
                options |= {"num_cpus": max(workers, there), "include_dashboard": False}
                # Its processes must find the same modules as this one.
                path = os.pathsep.join(filter(None, sys.path))
                options["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
            try:
                _require_answer(address)
                ray.init(address or "local", logging_level=logging.ERROR, **options)
            except (OSError, ValueError, RuntimeError) as error:
                raise HolderError(f"no Ray cluster answers at {address!r}: {error}") from None
            held.callback(ray.shutdown)
        cores = ray.cluster_resources().get("CPU", 0)
        if cores < workers:
            raise HolderError(
                f"the cluster has {cores:g} cores for {workers} workers: each needs one; add nodes"
            )
        yield


def _require_answer(address: str | None) -> None:
    """Raise OSError if nothing listens at host:port; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10.0).close()


class _Process:
    """A process of a cluster; it calls ``begin`` first."""

    def __init__(self, begin: Callable[[bytes], None], packed: bytes) -> None:
        begin(packed)

    def call(self, function: Callable[..., T], *values: Any) -> T:
        return function(*values)


class Actors:
    """Processes of a cluster that take calls in turn, like a process pool.

    Args:
        address: see :func:`cluster`. count: number of processes.
        begin: each process calls it first, with ``packed``.

    Raises:
        HolderError: see :func:`cluster`.
    """

    def __init__(
        self, address: str | None, count: int, begin: Callable[[bytes], None], packed: bytes
    ) -> None:
        self._held = contextlib.ExitStack()
        self._held.enter_context(cluster(address, count))
        self._ray = ray = engine()
        brought = ray.put(packed)
        kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_Process)
        self._actors = [kind.remote(begin, brought) for _ in range(count)]
        self._next = 0

    def submit(self, function: Callable[..., T], /, *values: Any) -> Future[T]:
        """Have the next process call a function."""
        self._next += 1
        chosen = self._actors[self._next % len(self._actors)]
        return chosen.call.remote(function, *values).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes."""
        for one in self._actors:
            self._ray.kill(one)
        self._held.close()


# Most unanswered calls to one neighbour, so that a stopped one does not fill the memory.
_QUEUE = 8


# In place of a message's kind: a sign of life, and one from a worker that has finished.
_SIGN, _FINISHED = 0, -1


def name_of(run: str, worker: int) -> str:
    """The name of a worker's actor."""
    return f"{run}/{worker}"


class WorkerActor:
    """The process of one worker: it runs :meth:`work`, and takes neighbours' messages meanwhile.

    Other processes call :meth:`deliver`, :meth:`told`, :meth:`pause` and :meth:`pid`; the worker in
    it calls :meth:`links`, :meth:`stop` and :meth:`tell`.
    """

    def __init__(self) -> None:
        self._run = ""
        self._links: ActorLinks | None = None
        self._paused = threading.Event()
        self._told = 0

    def deliver(self, sender: int, kind: int, payload: Any = None) -> bool:
        """Take a message; False: this worker has no links to receive it now."""
        links = self._links
        return links is not None and links.came(sender, kind, payload)

    def work(self, run: str, call: Call[T]) -> T:
        """Run the worker to its end. Ray calls this again after it restarts the process."""
        self._run = run
        return call(self)

    def links(self, gossip: Gossip, me: int) -> ActorLinks:
        """Make the worker's links to its neighbours."""
        self._links = ActorLinks(self._run, me, gossip)
        return self._links

    def stop(self) -> bool:
        """True if the worker is to pause."""
        return self._paused.is_set()

    def tell(self, updates: int) -> None:
        """Take the worker's number of updates."""
        self._told = updates

    def told(self) -> int:
        """The worker's number of updates, as last reported in this process; 0 before."""
        return self._told

    def pause(self) -> None:
        """Ask the worker to stop; it can go on from its ledger."""
        self._paused.set()

    def pid(self) -> int:
        """The process id."""
        return os.getpid()


Call: TypeAlias = Callable[[WorkerActor], T]


def actor() -> Any:
    """The class of the workers' actors: one thread works, another takes messages in order."""
    ray = engine()
    groups = {"deliver": "mail", "told": "mail", "pause": "mail", "pid": "mail", "work": "work"}
    again = {"work": -1}  # Ray repeats this call in a restarted process, without limit
    methods = {
        name: ray.method(concurrency_group=group, max_task_retries=again.get(name, 0))(
            getattr(WorkerActor, name)
        )
        for name, group in groups.items()
    }
    return ray.remote(num_cpus=1, concurrency_groups={"mail": 1, "work": 1})(
        type("WorkerActor", (WorkerActor,), methods)
    )


class _Way:
    """The connection to one neighbour."""

    def __init__(self, run: str, peer: int) -> None:
        self.name = name_of(run, peer)
        self.actor: Any = None
        self.heard: float | None = None
        self.waiting = 0
        self.over = False


class ActorLinks:
    """Links to a worker's neighbours; see :class:`~forethought.holders.links.Links`.

    Args:
        run: first part of the actors' names. me: this worker's place.
        gossip: names its neighbours, and limits what they may send.
    """

    reduce: Reduce | None = None

    def __init__(self, run: str, me: int, gossip: Gossip) -> None:
        self._ray = engine()
        self._me, self._most, self._largest = me, gossip.coordinates, gossip.trust.largest
        self._ways = {peer: _Way(run, peer) for peer in gossip.mixing.graph.neighbours(me)}
        self._deliver: Deliver | None = None
        self._sign = _SIGN
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="gossip-signs", daemon=True)

    def start(self, deliver: Deliver) -> None:
        """See Links."""
        self._deliver = deliver
        self._thread.start()

    def send(self, to: int, message: Any) -> None:
        """See Links.

        Raises:
            ValueError: a class that is not registered.
        """
        way = self._ways[to]
        if way.actor is None or way.waiting >= _QUEUE:
            return
        number = number_of(message, KINDS, "message")
        self._call(way, number, np.frombuffer(encode(message), np.uint8))

    def heard(self, peer: int) -> float | None:
        """See Links. A neighbour that cannot be called yet counts as not heard."""
        way = self._ways[peer]
        return None if way.actor is None else way.heard

    def finish(self) -> None:
        """See Links."""
        self._sign = _FINISHED
        self._say_all()

    def over(self, peer: int) -> bool:
        """See Links."""
        return self._ways[peer].over

    def close(self, seconds: float) -> None:
        """See Links."""
        self._ending.set()
        until = time.monotonic() + seconds
        ways = [way for way in self._ways.values() if way.heard is not None]
        while any(way.waiting for way in ways) and time.monotonic() < until:
            time.sleep(0.005)
        self._deliver = None
        self._thread.join(seconds)

    def came(self, sender: int, kind: int, payload: Any) -> bool:
        """Handle a neighbour's call; False: these links have not begun, or have ended."""
        deliver = self._deliver
        if deliver is None or sender not in self._ways:
            return False
        way = self._ways[sender]
        way.heard = time.monotonic()
        if kind == _FINISHED:
            way.over = True
        elif kind != _SIGN:
            try:
                message = judged(kind, memoryview(payload), self._most, lambda _: self._largest)
                deliver(Arrived(sender, message))
            except DecodeError as error:
                text = f"a message of worker {sender} was refused: {error}"
                deliver(RefusedMessage(sender, text))
        return True

    # ---- calls

    def _beat(self) -> None:
        try:
            while not self._ending.is_set():
                self._say_all()
                self._ending.wait(BEAT_EVERY)
        except Exception as error:
            if (deliver := self._deliver) is not None:
                deliver(error)

    def _say_all(self) -> None:
        for way in self._ways.values():
            if way.actor is None:
                # The actor does not exist yet, or the cluster does not answer now.
                with contextlib.suppress(ValueError, self._ray.exceptions.RayError):
                    way.actor = self._ray.get_actor(way.name, NAMESPACE)
            # At most one sign is unanswered: with a process that starts slowly, more signs would
            # take the queue's places from messages. The sign of the end may fill the queue.
            if way.actor is not None and way.waiting < (_QUEUE if self._sign == _FINISHED else 1):
                self._call(way, self._sign)

    def _call(self, way: _Way, kind: int, payload: Any = None) -> None:
        called = way.actor
        if called is None:
            return
        with self._lock:
            way.waiting += 1
        answer: Future[bool] = called.deliver.remote(self._me, kind, payload).future()

        def answered(done: Future[bool]) -> None:
            with self._lock:
                way.waiting -= 1
            error = done.exception()
            if error is None and done.result():
                way.heard = time.monotonic()
                return
            way.heard = None
            if isinstance(error, self._ray.exceptions.ActorDiedError) and way.actor is called:
                way.actor = None  # dead for good, unless a new actor takes its name

        answer.add_done_callback(answered)


@dataclass
class WorkerEnd(Generic[T]):
    """One worker's end: its result, or the exception that it raised."""

    result: T | None = None
    error: BaseException | None = None


def run_workers(
    run: str,
    works: Sequence[Call[T]],
    *,
    stop: Stop = lambda: False,
    look: Callable[[list[int]], None] | None = None,
) -> list[WorkerEnd[T]]:
    """Run each worker's call in an actor of its own, and wait for the end of all.

    Args:
        run: name of this run; no other run of this name may be active on the cluster.
        works: a call for each worker; must be picklable.
        stop: asked about once a second; True pauses all workers.
        look: called about once a second with every worker's number of updates.

    Raises:
        PeersError: a run of this name is active.
    """
    ray = engine()
    # A worker starts on the same node every time, because its ledger is there.
    nodes = sorted(
        (node["NodeManagerHostname"], node["NodeID"], int(node["Resources"].get("CPU", 0)))
        for node in ray.nodes()
        if node["Alive"]
    )
    places = [node for _, node, count in nodes for _ in range(count)]
    kind = actor()
    pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    try:
        actors = [
            kind.options(
                name=name_of(run, k),
                namespace=NAMESPACE,
                max_restarts=-1,
                scheduling_strategy=pinned(places[k], soft=False),
            ).remote()
            for k in range(len(works))
        ]
    except ValueError as error:
        raise PeersError(f"{error}: such a run is under way on this cluster") from None
    waiting = {one.work.remote(run, works[k]): k for k, one in enumerate(actors)}
    outcomes: list[WorkerEnd[T]] = [WorkerEnd() for _ in works]
    told = [0] * len(works)
    try:
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=1.0)
            for ref in done:
                k = waiting.pop(ref)
                try:
                    outcomes[k].result = ray.get(ref)
                except ray.exceptions.RayError as error:
                    outcomes[k].error = getattr(error, "cause", None) or error
            if stop():  # repeated, because an actor that Ray restarted has not received it
                for one in actors:
                    one.pause.remote()
            if look is not None:
                _ask(actors, told)
                look(told)
    finally:
        for one in actors:
            ray.kill(one, no_restart=True)
    return outcomes


def _ask(actors: Sequence[Any], told: list[int]) -> None:
    ray = engine()
    asked = {one.told.remote(): k for k, one in enumerate(actors)}
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0.5)
    for ref in ready:
        with contextlib.suppress(ray.exceptions.RayError):  # the actor is being restarted
            told[asked[ref]] = max(told[asked[ref]], ray.get(ref))

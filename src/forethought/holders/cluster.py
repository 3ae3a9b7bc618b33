"""Ray, where holders are computed on a cluster: joining one, and processes of it that compute."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib import import_module
from typing import Any, TypeVar

from forethought.holders.work import HolderError

T = TypeVar("T")
NAMESPACE = "forethought"
# Asked by Ray when it is loaded; set to 0, a cluster of one's own listens on 127.0.0.1 alone.
_OPEN = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def engine() -> Any:
    """Ray.

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
        address: of a cluster ("auto": the one that runs here); None: of one's own.
        workers: how many processes are to be started.

    Raises:
        HolderError: no Ray, no cluster there, or one with fewer cores than workers.
    """
    if address is None and "ray" not in sys.modules:
        os.environ.setdefault(_OPEN, "0")
    ray = engine()
    with contextlib.ExitStack() as held:
        if not ray.is_initialized():  # else by whoever called, who also ends it
            options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False}
            if address is None:
                there = os.cpu_count() or 1
                options |= {"num_cpus": max(workers, there), "include_dashboard": False}
                # Its processes find the modules that this one finds.
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
    """Ray itself tries for minutes. Raises OSError where nobody listens at host:port."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10.0).close()


class _Process:
    """One process of a cluster, which has called ``begin``."""

    def __init__(self, begin: Callable[[bytes], None], packed: bytes) -> None:
        begin(packed)

    def call(self, function: Callable[..., T], *values: Any) -> T:
        return function(*values)


class Actors:
    """Processes of a cluster that compute in turn, as those of a pool do.

    Args:
        address: see :func:`cluster`. count: of processes.
        begin: called first by each, with ``packed``.

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
        found: Future[T] = chosen.call.remote(function, *values).future()
        return found

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes."""
        for one in self._actors:
            self._ray.kill(one)
        self._held.close()

"""Workers of trials as actors of a Ray cluster on this machine, with the ways of a process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from forethought.holders.cluster import NAMESPACE, WorkerActor, actor, engine, name_of

# Seconds in which a worker begins: it loads torch first, on a busy machine beside others that do.
BEGIN = 300.0


def _lived(live: Callable[..., None], args: tuple[Any, ...], here: WorkerActor) -> int:
    try:
        live(*args, here=here)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


class ActorProcess:
    """What :class:`multiprocessing.Process` is to a trial; Ray does not start it again by itself.

    Args:
        run: of the trial. me: which worker. target, args: what it does.
    """

    def __init__(self, run: str, me: int, target: Callable[..., None], args: tuple[Any, ...]):
        self._run, self._me, self._work = run, me, partial(_lived, target, args)
        self._status: int | None = None
        self._pid: int | None = None
        self._ray = engine()

    def start(self) -> None:
        name = name_of(self._run, self._me)
        end = time.monotonic() + 60.0
        while True:
            try:
                self._actor = actor().options(name=name, namespace=NAMESPACE).remote()
                break
            except ValueError:  # the one that was killed still has the name
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self._begun = self._actor.pid.remote()
        self._ref = self._actor.work.options(max_task_retries=0).remote(self._run, self._work)

    @property
    def pid(self) -> int:
        """The process's number, which it has when it has begun."""
        if self._pid is None:
            self._pid = self._ray.get(self._begun, timeout=BEGIN)
        return self._pid

    def is_alive(self) -> bool:
        return self.exitcode is None

    @property
    def exitcode(self) -> int | None:
        if self._status is None and self._ray.wait([self._ref], timeout=0)[0]:
            try:
                self._status = self._ray.get(self._ref)
            except self._ray.exceptions.ActorDiedError:
                self._status = -signal.SIGKILL
            except self._ray.exceptions.RayError as error:
                print(error, flush=True)
                self._status = 1
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(self._actor)
        return self._status

    def kill(self) -> None:
        if self._status is not None:
            return
        if not self._ray.wait([self._begun], timeout=0)[0]:
            self._ray.kill(self._actor)  # it has no process yet
            return
        with contextlib.suppress(ProcessLookupError, self._ray.exceptions.ActorDiedError):
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGKILL)

    def join(self) -> None:
        self._ray.wait([self._ref], timeout=60)
        assert self.exitcode is not None

"""Workers as actors of a Ray cluster on this machine: met, killed, stopped, started again."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

import forethought as ft
from forethought.exchange.messages import KINDS, encode
from forethought.gossip.events import Weights
from forethought.gossip.gossip import Gossip, Member, Trust
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders import cluster as module
from forethought.holders.cluster import (
    NAMESPACE,
    ActorLinks,
    WorkerActor,
    cluster,
    engine,
    name_of,
    run_workers,
)
from forethought.holders.links import Arrived, PeersError
from forethought.holders.simulator import HolderError

PATIENCE = 120.0


@pytest.fixture(scope="module")
def there() -> Iterator[None]:
    with cluster(None, 4):
        yield


def gossip(workers: int, parameters: int = 1000) -> Gossip:
    plan = ft.Plan(
        ft.Mechanism(ft.Rounds(1.0, 9, ft.Poisson(0.5))),
        40,
        1e-3,
        optimizer=ft.Optimizer("sgd", 0.5, ()),
    )
    members = tuple(Member(f"worker-{k}") for k in range(workers))
    mixing = Mixing("matchings", make("complete", workers))
    return Gossip(members, (plan,), mixing, parameters, "made", 5, trust=Trust(largest=1e4))


def until(there: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def said(round: int, value: float, size: int = 1000) -> Weights:
    return Weights(round, 0, 0, 0, -1, np.full(size, value, np.float32))


class Script:
    """A worker that does what the test writes into a folder, and writes down what it sees."""

    def __init__(self, me: int, folder: Path, count: int) -> None:
        self.me, self.folder, self.count = me, folder, count

    def __call__(self, here: WorkerActor) -> list[tuple[int, int, float]]:
        agreed = gossip(self.count)
        links = here.links(agreed, self.me)
        came: list[tuple[int, int, float]] = []
        done = 0

        def deliver(what: Any) -> None:
            if isinstance(what, Arrived):
                came.append((what.sender, what.message.round, float(what.message.vector.sum())))
            else:
                assert "worker 0 was refused" in what.text
                came.append((0, -1, 0.0))

        links.start(deliver)
        while not here.stop():
            told = [
                f"{peer}:{'met' if links.heard(peer) else 'left'}" for peer in range(self.count)
                if peer != self.me
            ]  # fmt: skip
            ago = [
                time.monotonic() - (links.heard(peer) or 0)
                for peer in range(self.count)
                if peer != self.me
            ]
            self.write("state", f"{os.getpid()} {' '.join(told)} {max(ago):.2f} {len(came)}")
            lines = self.read("orders")
            for line in lines[done:]:
                words = line.split()
                links.send(int(words[0]), said(int(words[1]), float(words[2])))
            done = len(lines)
            here.tell(len(came))
            time.sleep(0.01)
        links.finish()
        links.close(2.0)
        return came

    def write(self, name: str, text: str) -> None:
        part = self.folder / f"{name}-{self.me}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(part.with_suffix(""))

    def read(self, name: str) -> list[str]:
        path = self.folder / f"{name}-{self.me}"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class Watched:
    """Scripts that run in actors, in a thread of the test."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.scripts = folder, [Script(k, folder, count) for k in range(count)]
        self.halt, self.told = threading.Event(), [0] * count
        self.outcomes: Any = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        self.outcomes = run_workers(
            f"scripts-{self.folder.name}",
            self.scripts,
            stop=self.halt.is_set,
            look=lambda told: self.told.__setitem__(slice(None), told),
        )

    def state(self, me: int) -> list[str]:
        text = self.scripts[me].read("state")
        return text[0].split() if text else []

    def pid(self, me: int) -> int:
        return int(self.state(me)[0])

    def order(self, me: int, *lines: str) -> None:
        with (self.folder / f"orders-{me}").open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def back(self, me: int, before: int) -> bool:
        """True once a worker is in another process; ActorDiedError where Ray has given it up."""
        known = engine().get_actor(name_of(f"scripts-{self.folder.name}", me), NAMESPACE)
        try:
            engine().get(known.pid.remote())
        except engine().exceptions.ActorUnavailableError:
            return False  # it is being started again
        return self.pid(me) != before

    def end(self) -> None:
        self.halt.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def watched(there: None, tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path, 3)
    yield found
    found.end()


@pytest.mark.slow
def test_the_living_go_on_and_whoever_comes_back_is_met_again(watched: Watched) -> None:
    until(lambda: all(" ".join(watched.state(k)).count("met") == 2 for k in range(3)))
    # What comes is in order, whole, and judged: NaN and too large are refused, the next is taken.
    watched.order(0, "1 5 0.5", "1 6 nan", "1 7 1e5", "1 8 2")
    until(lambda: watched.state(1)[-1] == "4")
    # Killed: found by the others, whose ways hold; Ray starts it again, and it is met again.
    before = watched.pid(2)
    os.kill(before, signal.SIGKILL)
    until(lambda: all("2:left" in watched.state(k) for k in (0, 1)))
    watched.order(1, "0 9 1")
    until(lambda: watched.state(0)[-1] == "1")
    until(lambda: watched.back(2, before) and "0:met" in watched.state(2))
    until(lambda: all("2:met" in watched.state(k) for k in (0, 1)))
    # Stopped: nothing breaks, nothing is heard; of what is sent most is lost, and nobody waits.
    stopped = watched.pid(2)
    os.kill(stopped, signal.SIGSTOP)
    try:
        watched.order(0, *(f"2 {round} 1" for round in range(20, 60)), "1 60 1")
        until(lambda: watched.state(1)[-1] == "5")
        until(lambda: float(watched.state(0)[-2]) > 1.5)
    finally:
        os.kill(stopped, signal.SIGCONT)
    until(lambda: float(watched.state(0)[-2]) < 1.0)
    watched.end()
    first, second, third = (outcome.result for outcome in watched.outcomes)
    assert second == [(0, 5, 500.0), (0, -1, 0.0), (0, -1, 0.0), (0, 8, 2000.0), (0, 60, 1000.0)]
    assert first == [(1, 9, 1000.0)]
    rounds = [round for _, round, _ in third]
    assert rounds == sorted(rounds) and 0 < len(rounds) <= 8 + 1
    assert watched.told[0] <= 1 and watched.told[1] >= 4


@pytest.mark.slow
def test_a_cluster_of_ones_own_listens_on_loopback_alone(there: None) -> None:
    (node,) = engine().nodes()
    assert node["NodeManagerAddress"] == "127.0.0.1"
    port = node["NodeManagerPort"]
    with socket.socket() as outside:
        outside.settimeout(5.0)
        own = socket.gethostbyname(socket.gethostname())
        if not own.startswith("127."):
            with pytest.raises(OSError):
                outside.connect((own, port))


def _failing(here: WorkerActor) -> None:
    raise ValueError("nothing to train on")


def _returning(value: int, here: WorkerActor) -> int:
    return value


@pytest.mark.slow
def test_what_a_worker_returns_or_raises_comes_back(there: None) -> None:
    found = run_workers("ends", [partial(_returning, 7), _failing])
    assert found[0].result == 7 and found[0].error is None
    assert isinstance(found[1].error, ValueError) and "nothing to train" in str(found[1].error)
    assert run_workers("ends", [partial(_returning, 1)])[0].result == 1  # the name is free again


@pytest.mark.slow
def test_too_small_a_cluster_and_a_run_under_way_are_refused(watched: Watched) -> None:
    with pytest.raises(HolderError, match="cores for 99"), cluster(None, 99):
        pass
    until(lambda: watched.state(0))
    name = f"scripts-{watched.folder.name}"
    assert engine().get_actor(name_of(name, 0), NAMESPACE)
    with pytest.raises(PeersError, match="is under way"):
        run_workers(name, [partial(_returning, 1)])


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    joined_none = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setattr("forethought.holders.cluster.engine", lambda: joined_none)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with pytest.raises(HolderError, match="no Ray cluster"), cluster(f"127.0.0.1:{port}", 2):
        pass


class Answers:
    """Stands in for Ray: neighbours whose answers come when the test says so."""

    exceptions = SimpleNamespace(ActorDiedError=ChildProcessError, RayError=ChildProcessError)

    def __init__(self) -> None:
        self.calls: list[tuple[int, Any, Future[bool]]] = []
        self.deliver = SimpleNamespace(remote=self._called)

    def get_actor(self, name: str, namespace: str) -> Answers:
        return self

    def _called(self, sender: int, kind: int, payload: Any) -> Any:
        self.calls.append((kind, payload, Future()))
        return SimpleNamespace(future=lambda made=self.calls[-1][2]: made)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    found = Answers()
    monkeypatch.setattr(module, "engine", lambda: found)
    return found


def test_of_what_a_stopped_worker_does_not_answer_eight_are_on_their_way(answers: Answers) -> None:
    links = ActorLinks("run", 0, gossip(2))
    links.send(1, said(1, 1.0))  # there is no way yet: it is lost
    links.start(lambda what: None)
    until(lambda: answers.calls)
    for round in range(20):
        links.send(1, said(round, 1.0))
    assert len(answers.calls) <= 8
    assert links.heard(1) is None
    for _, _, answer in list(answers.calls):
        answer.set_result(True)
    assert links.heard(1) is not None
    before = len(answers.calls)
    links.send(1, said(7, 1.0))
    assert len(answers.calls) > before
    # Dead: no way, and nothing is heard.
    answers.calls[-1][2].set_exception(ChildProcessError())
    assert links.heard(1) is None
    links.close(0.1)


def test_signs_that_nobody_answers_leave_messages_their_places(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_EVERY", 0.0)
    links = ActorLinks("run", 0, gossip(2))
    links.start(lambda what: None)
    for signs in range(1, 21):
        until(lambda wanted=signs: len(answers.calls) >= wanted)
        if signs < 20:
            answers.calls[-1][2].set_result(True)
    for round in range(7):
        links.send(1, said(round, 1.0))
    kinds = [kind for kind, _, answer in answers.calls if not answer.done()]
    assert kinds.count(0) == 1 and len(kinds) == 8
    answers.calls[-1][2].set_result(True)
    links.finish()
    until(lambda: answers.calls[-1][0] == -1)  # its last word is said beside messages
    links.close(0.1)


def test_what_comes_is_judged_before_it_is_delivered(answers: Answers) -> None:
    links = ActorLinks("run", 0, gossip(2))
    came: list[Any] = []
    number = next(number for number, kind in KINDS.items() if kind is Weights)
    good = np.frombuffer(encode(said(3, 1.0)), np.uint8)
    assert not links.came(1, number, good)  # nobody is there yet
    links.start(came.append)
    assert not links.came(5, number, good)  # no neighbour
    assert links.came(1, number, good)
    for bad in (said(3, 1e6), said(3, float("nan")), said(3, 1.0, 999)):
        assert links.came(1, number, np.frombuffer(encode(bad), np.uint8))
    assert links.came(1, number, good[:-1]) and links.came(1, 255, good)
    assert [type(one).__name__ for one in came] == ["Arrived", *["RefusedMessage"] * 5]
    links.close(0.1)
    assert not links.came(1, number, good)


def test_a_fault_in_signs_comes_to_the_worker_and_a_silent_cluster_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [OSError("the cluster does not answer"), MemoryError("a fault")]

    def asked(*_: object) -> None:
        raise answers.pop(0)

    ray = SimpleNamespace(get_actor=asked, exceptions=SimpleNamespace(RayError=OSError))
    monkeypatch.setattr(module, "engine", lambda: ray)
    monkeypatch.setattr(module, "BEAT_EVERY", 0.0)
    links, came = ActorLinks("run", 0, gossip(2)), list[Any]()
    links.start(came.append)
    end = time.monotonic() + 5.0
    while not came and time.monotonic() < end:
        time.sleep(0.01)
    links.close(0.1)
    assert [type(one) for one in came] == [MemoryError]

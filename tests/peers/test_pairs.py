"""Three processes over gloo pairs: one is killed, started again, stopped, and let go on."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

PROGRAM = """
import os, socket, sys, threading, time
import numpy as np
from forethought.exchange.messages import Update
from forethought.peers.links import Arrived
from forethought.peers.pairs import GlooPairs, Meeting

me, port = int(sys.argv[1]), int(sys.argv[2])
peers = [peer for peer in range(3) if peer != me]
links = GlooPairs(Meeting("127.0.0.1", port), me, peers, 1000, 1e4)

def deliver(what):
    if isinstance(what, Arrived):
        print("got", what.sender, what.message.round, float(what.message.vector.sum()), flush=True)
    else:
        print("refused", what.sender, what.text, flush=True)

def watch():
    before = {}
    while True:
        for peer in peers:
            there = links.heard(peer) is not None
            if before.get(peer, False) != there:
                before[peer] = there
                print("met" if there else "left", peer, flush=True)
        time.sleep(0.01)

def break_connections():
    # As a line between two living workers does: their sockets end, but not those of the store.
    for name in os.listdir("/proc/self/fd"):
        try:
            held = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if port not in (held.getpeername()[1], held.getsockname()[1]):
                held.shutdown(socket.SHUT_RDWR)
        except (OSError, IndexError):
            pass
        held.close()

links.start(deliver)
threading.Thread(target=watch, daemon=True).start()
print("life", links.life, flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "send":
        vector = np.full(1000, float(words[3]), np.float32)
        links.send(int(words[1]), Update(int(words[2]), 0, vector))
    elif words[0] == "heard":
        print("ago", words[1], time.monotonic() - links.heard(int(words[1])), flush=True)
    elif words[0] == "break":
        break_connections()
    else:
        links.close(float(words[1]))
        print("threads", threading.active_count(), flush=True)
        break
"""
PATIENCE = 300.0


class Worker:
    """One process, whose lines are waited for."""

    def __init__(self, me: int, port: int) -> None:
        command = [sys.executable, "-c", PROGRAM, str(me), str(port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait_for(self, *wanted: str) -> dict[str, str]:
        """Read until every beginning was seen, in any order."""
        found: dict[str, str] = {}
        until = time.monotonic() + PATIENCE
        while len(found) < len(wanted):
            line = self.lines.get(timeout=max(0.1, until - time.monotonic()))
            found.update({begin: line for begin in wanted if line.startswith(begin)})
        return found

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE)


@pytest.fixture
def store() -> Iterator[int]:
    from datetime import timedelta

    from torch.distributed import TCPStore

    held = TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=PATIENCE), wait_for_workers=False
    )
    yield held.port


@pytest.mark.slow
def test_survivors_go_on_and_whoever_comes_back_is_met_again(store):
    workers = [Worker(me, store) for me in range(3)]
    try:
        for me, worker in enumerate(workers):
            worker.wait_for("life 1", *(f"met {peer}" for peer in range(3) if peer != me))
        workers[0].tell("send 1 5 0.5")
        assert workers[1].wait_for("got 0 5")["got 0 5"] == "got 0 5 500.0"

        # NaN is refused, and the next message is taken.
        workers[0].tell("send 1 6 nan")
        workers[0].tell("send 1 7 1e5")
        workers[0].tell("send 1 8 2")
        lines = workers[1].wait_for(
            "refused 0 a message of worker 0 was refused: Update", "got 0 8"
        )
        assert lines["got 0 8"] == "got 0 8 2000.0"

        # Killed: found at once, and the others' pairs hold.
        workers[2].process.send_signal(signal.SIGKILL)
        for worker in workers[:2]:
            worker.wait_for("left 2")
        workers[1].tell("send 0 9 1")
        workers[0].wait_for("got 1 9 1000.0")
        workers[0].tell("send 2 10 1")  # to nobody: lost, and nothing else

        # Begun again: met again, under a new life.
        workers[2].end()
        workers[2] = Worker(2, store)
        workers[2].wait_for("life 2", "met 0", "met 1")
        for worker in workers[:2]:
            worker.wait_for("met 2")
        workers[0].tell("send 2 11 3")
        workers[2].wait_for("got 0 11 3000.0")

        # Stopped: nothing breaks, nothing is heard, and what was on its way arrives later.
        workers[2].process.send_signal(signal.SIGSTOP)
        for round in range(20, 60):  # more than a queue, of which the rest is dropped
            workers[0].tell(f"send 2 {round} 1")
        silent = 0.0
        while silent <= 1.0:
            workers[0].tell("heard 2")
            silent = float(workers[0].wait_for("ago 2")["ago 2"].split()[2])
        workers[1].tell("send 0 12 1")
        workers[0].wait_for("got 1 12")
        workers[2].process.send_signal(signal.SIGCONT)
        workers[2].wait_for("got 0 20")

        for worker in workers:
            worker.tell("close 10")
        for worker in workers:
            worker.wait_for("threads 2")  # its own and the one that watches: nobody is in gloo
            assert worker.process.wait(PATIENCE) == 0
    finally:
        for worker in workers:
            worker.end()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_connection_that_broke_between_the_living_is_made_again(store):
    workers = [Worker(me, store) for me in range(3)]
    try:
        for me, worker in enumerate(workers):
            worker.wait_for("life 1", *(f"met {peer}" for peer in range(3) if peer != me))
        for again in (1, 2):
            workers[0].tell("break")
            workers[0].wait_for("left 1", "left 2", "met 1", "met 2")
            for me in (1, 2):
                workers[me].wait_for("left 0", "met 0")
            workers[1].tell(f"send 0 {again} 0.5")
            assert workers[0].wait_for(f"got 1 {again}")[f"got 1 {again}"].endswith(" 500.0")
            workers[0].tell(f"send 2 {again} 2")
            workers[2].wait_for(f"got 0 {again} 2000.0")
        workers[1].tell("send 2 7 1")  # this pair was never broken
        workers[2].wait_for("got 1 7")
    finally:
        for worker in workers:
            worker.end()


def test_nobody_waits_in_a_group_that_the_other_side_has_given_up(store, monkeypatch):
    from forethought.peers import pairs
    from forethought.peers.pairs import GlooPairs, Meeting

    monkeypatch.setattr(pairs, "_MEET", PATIENCE)  # so it is not this time that ends the waiting
    meeting = Meeting("127.0.0.1", store)
    pair = GlooPairs(meeting, 0, [1], 10, 1e4)._pairs[1]
    other = GlooPairs(meeting, 1, [0], 10, 1e4)._pairs[0]
    at = meeting.store()
    name = pair._name(at, (1, 1))
    # The other side's making fails at once, as it does where a connection is refused.
    threading.Timer(0.5, lambda: at.add(other._turn(1, 1), 1)).start()
    begin = time.monotonic()
    assert pair._group(meeting.store(), name) is None
    assert time.monotonic() - begin < PATIENCE


@pytest.mark.slow
def test_a_process_ends_well_while_its_neighbour_is_stopped(store):
    workers = [Worker(me, store) for me in range(2)]
    try:
        for me, worker in enumerate(workers):
            worker.wait_for(f"met {1 - me}")
        workers[1].process.send_signal(signal.SIGSTOP)
        for round in range(20):
            workers[0].tell(f"send 1 {round} 1")
        workers[0].tell("close 0.1")
        workers[0].wait_for("threads")
        assert workers[0].process.wait(PATIENCE) == 0
    finally:
        for worker in workers:
            worker.end()


@pytest.mark.slow
def test_a_process_ends_well_while_its_neighbour_goes_on(store):
    """A thread that came back from gloo meanwhile would have it aborted."""
    workers = [Worker(me, store) for me in range(2)]
    try:
        for me, worker in enumerate(workers):
            worker.wait_for(f"met {1 - me}")
        for round in range(20):
            workers[0].tell(f"send 1 {round} 1")
            workers[1].tell(f"send 0 {round} 1")
        for worker in workers:
            worker.tell("close 0")
        for worker in workers:
            assert worker.process.wait(PATIENCE) == 0
    finally:
        for worker in workers:
            worker.end()

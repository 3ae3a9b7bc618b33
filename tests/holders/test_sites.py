from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from threads import toward
from workers import gossip, vector

from forethought.exchange.keys import Keys, RosterError
from forethought.exchange.messages import Endpoint
from forethought.gossip.events import Hello, Known, Weights
from forethought.gossip.gossip import GossipError
from forethought.holders.grpc import PeerRoster, SiteLinks
from forethought.holders.links import Arrived, Pace, PeersError, RefusedMessage, WorkerDriver
from forethought.holders.simulator import worker
from trials.recorded import Recorded

PATIENCE = 300.0


def ports(count: int) -> list[str]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    return found


def members(folder: Path, names: list[str]) -> tuple[list[Keys], PeerRoster]:
    keys = [Keys.make(folder / name, name) for name in names]
    return keys, PeerRoster.of([one.identity for one in keys], ports(len(names)))


class Two:
    """Two neighbours, and what came to each."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.roster = members(folder, ["w0", "w1"])
        self.gossip = self.roster.with_keys(gossip(workers=2))
        self.links = [SiteLinks(self.gossip, self.roster, one) for one in self.keys]
        self.came: list[list[Any]] = [[], []]
        for one, came in zip(self.links, self.came, strict=True):
            one.start(came.append)
        self.until(lambda: all(self.links[k].heard(1 - k) is not None for k in (0, 1)))

    def until(self, there: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end
            time.sleep(0.01)

    def close(self) -> None:
        threads = [threading.Thread(target=one.close, args=(5.0,)) for one in self.links]
        for one in threads:
            one.start()
        for one in threads:
            one.join(PATIENCE)


@pytest.fixture
def two(tmp_path):
    made = Two(tmp_path)
    yield made
    made.close()


def weights(*values: float) -> Weights:
    return Weights(0, 0, 0, 0, -1, vector(*values))


def test_messages_go_both_ways_and_bad_weights_do_not(two):
    two.links[0].send(1, weights(1, 2, 3))
    two.links[1].send(0, weights(4, 5, 6))
    for bad in (float("nan"), float("inf"), 1e9):
        two.links[0].send(1, weights(1, bad, 3))
    two.links[0].send(1, weights(7, 8, 9))
    two.until(lambda: len(two.came[1]) == 5 and two.came[0])
    assert [type(one) for one in two.came[1]] == [
        Arrived,
        RefusedMessage,
        RefusedMessage,
        RefusedMessage,
        Arrived,
    ]
    np.testing.assert_array_equal(two.came[1][4].message.vector, vector(7, 8, 9))
    assert two.came[0][0].sender == 1
    assert all("frame from worker 'w0' was refused" in one.text for one in two.came[1][1:4])


def test_whoever_has_finished_says_so_and_still_speaks(two):
    two.links[0].finish()
    two.until(lambda: two.links[1].over(0))
    assert not two.links[0].over(1)
    two.links[0].send(1, weights(1, 1, 1))
    two.until(lambda: two.came[1])


def test_a_neighbour_that_lies_about_who_it_is_is_refused(two):
    frame = two.links[0].endpoint.seal(1, weights(1, 1, 1))
    # The sender's place stands behind magic, version, kind, reserved, length and run.
    forged = frame[:48] + (5).to_bytes(8, "little") + frame[56:]
    changed = frame[:-70] + bytes([frame[-70] ^ 1]) + frame[-69:]
    for data in (forged, changed):
        two.links[0]._loop.call_soon_threadsafe(two.links[0]._put, 1, data)
    two.until(lambda: len(two.came[1]) == 2)
    assert "unknown sender 5" in two.came[1][0].text
    assert "forged, or changed on its way" in two.came[1][1].text


def test_who_says_that_it_knows_of_more_releases_shows_the_signature_on_them(two):
    """A lie stops nobody; the truth stops a worker whose ledger was set back."""
    two.links[1].send(0, Hello(4, 0, 0))
    two.until(lambda: two.came[0])
    proof = two.came[0][0].proof
    two.links[1].endpoint._counted[0] = 0  # the life after: it has signed for nothing yet
    for known, shown in ((5, proof), (4, b""), (4, proof)):
        two.links[0].send(1, Known(0, 0, known, 1, shown))
    two.until(lambda: len(two.came[1]) == 3)
    assert [type(one) for one in two.came[1]] == [RefusedMessage, RefusedMessage, Arrived]
    assert "no signature of this member on so many" in two.came[1][0].text
    assert two.came[1][2].message.known == 4


def test_an_error_that_ends_a_connection_comes_to_the_worker(tmp_path):
    keys, roster = members(tmp_path, ["w0", "w1"])
    roster = PeerRoster(roster.workers, ("a\ud800:1", roster.addresses[1]), roster.nonce)
    links = SiteLinks(roster.with_keys(gossip(workers=2)), roster, keys[1])
    came: list[Any] = []
    links.start(came.append)
    end = time.monotonic() + 5.0
    while not came and time.monotonic() < end:
        time.sleep(0.01)
    links.close(1.0)
    assert [type(one) for one in came] == [UnicodeEncodeError]


@pytest.mark.slow
def test_a_stranger_does_not_get_in(two, tmp_path):
    # The same name and place, but keys of its own.
    own = Keys.make(tmp_path / "other", "w1")
    roster = PeerRoster((two.keys[0].identity, own.identity), two.roster.addresses, "0" * 32)
    stranger = SiteLinks(roster.with_keys(gossip(workers=2)), roster, own)
    came: list[Any] = []
    stranger.start(came.append)
    before = two.links[0].heard(1)
    two.until(lambda: two.links[0].heard(1) > before + 1.5)  # time enough for the stranger, too
    assert stranger.heard(0) is None and not came
    stranger.close(1.0)


@pytest.mark.slow
def test_members_of_different_gossips_do_not_meet_and_say_why(tmp_path):
    keys, roster = members(tmp_path, ["w0", "w1"])
    pace = Pace(meet=2.0, linger=1.0)
    errors: list[BaseException] = []

    def run(k: int, rounds: int) -> None:
        agreed = roster.with_keys(gossip(workers=2, rounds=rounds))
        links = SiteLinks(agreed, roster, keys[k])
        driver = WorkerDriver(worker(agreed, k, vector()), agreed, k, links, toward(1), pace=pace)
        try:
            driver.run()
        except PeersError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k, 4 + k)) for k in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE)
    assert len(errors) == 2
    assert all("no neighbour was met in 2 s" in str(one) for one in errors)
    assert any("it belongs to run" in str(one) for one in errors)


@pytest.mark.slow
def test_four_sites_gossip_to_the_end(tmp_path):
    agreed = gossip(workers=4, rounds=12, graph="ring")
    keys, roster = members(tmp_path, [one.name for one in agreed.members])
    agreed = roster.with_keys(agreed)
    machines = [Recorded(worker(agreed, k, vector())) for k in range(4)]
    pace = Pace(exchange=0.01, answer=0.3, patience=10.0, meet=PATIENCE, quiet=60.0, linger=20.0)
    outcomes: dict[int, Any] = {}

    def run(k: int) -> None:
        links = SiteLinks(agreed, roster, keys[k])
        driver = WorkerDriver(machines[k], agreed, k, links, toward(k, 0.05), pace=pace)
        outcomes[k] = driver.run()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(2 * PATIENCE)
    assert sorted(outcomes) == [0, 1, 2, 3]
    assert all(one.reason is not None for one in outcomes.values())
    assert not [one.alarms for one in outcomes.values() if one.counts.keys() - {"weights"}]
    assert all(machine.updates <= agreed.updates(0) for machine in machines)
    # Whoever was held up had few; the count of all ends them when one of them, which met nobody,
    # has made a fourth of the total by itself, and not before.
    assert sum(machine.updates for machine in machines) >= agreed.total / 4
    assert sum(one.averaged for one in outcomes.values()) > 0


def test_a_roster_comes_back_and_names_what_is_wrong(tmp_path):
    keys, roster = members(tmp_path, ["w0", "w1", "w2"])
    path = tmp_path / "roster.json"
    roster.save(path)
    assert PeerRoster.load(path) == roster and len(roster.fingerprint) == 32
    assert roster.place(keys[2]) == 2
    with pytest.raises(RosterError, match="made anew"):
        roster.place(Keys.make(tmp_path / "again", "w1"))
    with pytest.raises(GossipError, match="join the same,"):
        roster.with_keys(gossip(workers=2))
    own = [one.identity for one in keys]
    for wrong, message in [
        ((own, ["a:1", "b:2", "a:1"]), "two workers have the address a:1"),
        ((own, ["a:1", "b", "c:3"]), "'b' is no address"),
        ((own, ["a:1", "b:²", "c:3"]), "is no address"),
        ((own, ["a:1", "b:١", "c:3"]), "is no address"),
        ((own[:1], ["a:1"]), "at least two workers"),
        (([own[0], own[0]], ["a:1", "b:2"]), "the same name"),
    ]:
        with pytest.raises(RosterError, match=message):
            PeerRoster.of(*wrong)


@pytest.mark.parametrize("step", ["open", "seal"])
def test_a_fault_in_reading_or_in_a_sign_of_life_comes_to_the_worker(two, monkeypatch, step):
    sent = two.links[1].endpoint.seal(0, weights(1, 1, 1))

    def fault(*_: object) -> None:
        raise MemoryError(step)

    monkeypatch.setattr(Endpoint, step, fault)
    two.links[1]._loop.call_soon_threadsafe(two.links[1]._put, 0, sent)
    end = time.monotonic() + 5.0
    while not any(isinstance(one, MemoryError) for one in two.came[0]):
        assert time.monotonic() < end
        time.sleep(0.01)

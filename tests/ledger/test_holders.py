"""A federation's client and a gossip's worker, paid from books of their own."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from forethought.accounting.statement import Statement
from forethought.exchange import storage as of_client
from forethought.exchange.messages import SERVER, Endpoint, Finished, Model
from forethought.federated.federation import FederationError
from forethought.jobs import members
from forethought.jobs.account import verified
from forethought.jobs.holders import holders_of, simulate_job
from forethought.jobs.job import JobError, JobRequest, from_file, paying
from forethought.ledger.book import Account, BookError, OverBudgetError
from forethought.ledger.identity import new_key
from forethought.ledger.store import Store, create
from forethought.training.folder import KEYS, RESERVATION
from forethought.values.mechanism import Budget

JOB = """
[data]
source = "digits"
holdout = 0.2
features = "pixels"
[model]
name = "linear"
[budget]
epsilon = 3.0
delta = 1e-5
[training]
batch = 64
rounds = 8
"""
FEDERATION = '[federation]\n[[federation.client]]\nname = "a"\n[[federation.client]]\nname = "b"\n'


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def opened(folder: Path, name: str, epsilon: float = 8.0) -> Store:
    book = create(f"sqlite:///{folder / name}.db", actor=name)
    book.open_account(Account("digits", Budget(epsilon, 1e-5)))
    return book


def all_of(work: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            results[name] = work[name]()
        except BaseException as error:
            results[name] = error

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return results


def paid_by(request: JobRequest, folder: Path, name: str) -> JobRequest:
    return paying(request, f"sqlite:///{folder / name}.db#digits")


def require_settled(book: Store, out: Path, place: Path) -> None:
    (held,) = book.reservations("digits")
    statement = Statement.load(out / "statement.json")
    assert (held.status, held.released) == ("settled", len(statement.mechanism))
    assert any(caveat.code == "in-the-book" for caveat in statement.caveats)
    assert json.loads((out / "ledger.json").read_text())["reservation"] == held.number
    outcome = verified(out, ledger=f"sqlite:///{place}.db")
    assert "total of the data set" in outcome.checked


@pytest.mark.slow
def test_a_federations_client_settles_from_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB + FEDERATION)
    request, keys = from_file(path), tmp_path / "keys"
    members.make_everybody(request, "federation", keys)
    books = {name: opened(tmp_path, name) for name in "ab"}
    marks: list[tuple[int, int]] = []
    commit = of_client.ClientLedger.commit

    def committed(self: Any, release: Any) -> None:
        book, log = books["ab"[self._endpoint.me]], self._log

        def append(*parts: Any) -> None:
            marks.append((release.rounds, book.reservation(1).mark))
            type(log).append(log, *parts)

        log.append = append
        try:
            commit(self, release)
        finally:
            del log.append

    monkeypatch.setattr(of_client.ClientLedger, "commit", committed)
    address = f"127.0.0.1:{free_port()}"
    server = members.serve_job
    work: dict[str, Any] = {
        "server": lambda: server(request, keys / "server", tmp_path / "s", address=address)
    }
    for name in "ab":
        work[name] = lambda name=name: members.take_part_in_job(
            paid_by(request, tmp_path, name),
            keys / name,
            tmp_path / f"out-{name}",
            address=address,
        )
    results = all_of(work)
    for name in "ab":
        assert results[name].reason == "finished", results
        require_settled(books[name], tmp_path / f"out-{name}", tmp_path / name)
    assert len(marks) == 16 and all(mark >= rounds for rounds, mark in marks)


@pytest.mark.slow
def test_a_gossips_worker_settles_from_its_ledger(tmp_path: Path) -> None:
    text = JOB + "[gossip]\nrounds = 8\nexchange = 0.02\n"
    for name in "ab":
        text += f'[[gossip.worker]]\nname = "{name}"\naddress = "127.0.0.1:{free_port()}"\n'
    path = tmp_path / "job.toml"
    path.write_text(text)
    request, keys = from_file(path), tmp_path / "keys"
    members.make_everybody(request, "gossip", keys)
    books = {name: opened(tmp_path, name) for name in "ab"}
    work = {
        name: lambda name=name: members.site_worker(
            paid_by(request, tmp_path, name), keys / name, tmp_path / f"out-{name}"
        )
        for name in "ab"
    }
    results = all_of(work)
    for name in "ab":
        assert not isinstance(results[name], BaseException), results
        require_settled(books[name], tmp_path / f"out-{name}", tmp_path / name)


def test_a_member_that_brings_its_own_table_asks_its_book_once(tmp_path: Path) -> None:
    rows = [f"{one % 7},{one % 11},{'yes' if one % 3 else 'no'}" for one in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,y", *rows]))
    new_key(tmp_path / "key")
    text = (
        '[data]\nsource = "csv:table.csv"\nlabel = "y"\nclasses = ["no", "yes"]\n'
        "[data.columns]\na = [0, 7]\nb = [0, 11]\n[budget]\nepsilon = 3.0\ndelta = 1e-3\n"
        f'[ledger]\nurl = "sqlite:///{tmp_path / "a.db"}"\ndata = "digits"\n'
        f'identity = "{tmp_path / "key"}"\n[federation]\n'
    )
    for name in "ab":
        text += f'[[federation.client]]\nname = "{name}"\nexamples = 60\n'
    path = tmp_path / "job.toml"
    path.write_text(text)
    request, book = from_file(path), opened(tmp_path, "a")
    book.open_account(Account("clinic", Budget(1.0, 1e-5)))
    section, asked = request.job.federation, (0, "a", tmp_path)
    assert section is not None and section.brings_own

    def records() -> list[str]:
        return [entry.values["data"] for entry in book.entries() if entry.kind == "records"]

    members.own_records(request, section, *asked, tmp_path / "out")
    assert records() == ["digits"]
    again = paying(request, f"sqlite:///{tmp_path / 'a.db'}#clinic")
    section = again.job.federation
    assert section is not None
    with pytest.raises(BookError, match="another name"):
        members.own_records(again, section, *asked, tmp_path / "other")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / RESERVATION).write_text("{}")  # it goes on, and has been asked
    members.own_records(again, section, *asked, tmp_path / "other")
    assert records() == ["digits"]


class Client:
    """The client "a" of a federation of eight updates, and the frames that its server sends."""

    def __init__(self, folder: Path, federation: str = FEDERATION, epsilon: float = 8.0) -> None:
        self.folder, self.out, self.keys = folder, folder / "out", folder / "keys"
        path = folder / "job.toml"
        path.write_text(JOB + federation)
        self.request = from_file(path)
        members.make_everybody(self.request, "federation", self.keys)
        self.book = opened(folder, "a", epsilon)
        server = members.Membership.load(self.keys / "server", "federation")
        size = server.agreed.parameters
        self.agreed, self.start = server.agreed, np.zeros(size, dtype=np.float32)
        self.sealing = Endpoint(server.agreed.run_id, SERVER, server.keys.signing, {}, size)
        self.sent: list[Any] = []

    def models(self, first: int, end: int) -> list[bytes]:
        return [self.sealing.seal(0, Model(k, k, self.start)) for k in range(first, end)]

    def finished(self, updates: int, version: int = 8) -> bytes:
        return self.sealing.seal(0, Finished(updates, version, self.start))

    def part(self, *frames: bytes, leave: bool = False) -> Any:
        def carry(make: Any, compute: Any) -> Any:
            asked: list[Any] = []
            driver = make(lambda to, message, frame: self.sent.append(message), asked.append)
            driver.connected()
            for frame in frames:
                driver.received(frame, SERVER)
                while asked:
                    driver.handle(compute(asked.pop()))
            if leave:
                driver.stopped()
            return driver

        return members.take_part_in_job(
            paid_by(self.request, self.folder, "a"), self.keys / "a", self.out, carry=carry
        )

    @property
    def held(self) -> tuple[str, int | None]:
        """Status and released rounds of its only reservation."""
        (held,) = self.book.reservations("digits")
        return held.status, held.released


def codes(took: Any) -> set[str]:
    return {caveat.code for caveat in took.statement.caveats}


@pytest.mark.slow
def test_a_client_that_left_begins_again_and_is_settled_once(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for first in (0, 3):  # it leaves after three updates, and once more
        left = client.part(*client.models(first, 3), leave=True)
        assert (left.reason, left.over, left.updates) == ("stopped by its owner", False, 3)
        assert len(left.statement.mechanism) == 8
        assert "stopped-early" in codes(left)
        assert client.held[0] != "settled"
    done = client.part(*client.models(3, 8), client.finished(8))
    assert (done.reason, done.over, done.updates) == ("finished", True, 8)
    assert "stopped-early" not in codes(done)
    require_settled(client.book, client.out, tmp_path / "a")
    assert not (client.out / KEYS).exists()


@pytest.mark.slow
def test_who_left_and_came_back_counts_its_whole_plan(tmp_path: Path) -> None:
    client = Client(tmp_path)
    left = client.part(*client.models(0, 3), leave=True)
    done = client.part(client.finished(3))
    assert done.reason == "finished" and "stopped-early" in codes(done)
    assert done.statement.guarantee == left.statement.guarantee


def test_every_process_of_a_client_has_a_larger_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path)
    monkeypatch.setattr("time.time_ns", iter((50, 40, 60)).__next__)
    for _ in range(3):
        client.part()
    assert [message.life for message in client.sent] == [50, 51, 60]


@pytest.mark.parametrize("settled", [False, True])
def test_a_ledger_that_was_set_back_behind_its_book_releases_nothing(
    tmp_path: Path, settled: bool
) -> None:
    client = Client(tmp_path)
    client.part(*client.models(0, 2))
    copies = [client.out, client.keys]  # all that is on its disk; the book is elsewhere
    for place in copies:
        shutil.copytree(place, tmp_path / "backup" / place.name)
    client.part(*client.models(2, 6), *([client.finished(6)] if settled else []))
    for place in copies:
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "backup" / place.name, place)
    client.start = client.start + 0.5
    with pytest.raises(BookError, match="set back"):
        client.part(*client.models(2, 8))
    assert client.held == (("settled", 6) if settled else ("active", None))


def test_a_kill_between_the_mark_and_the_ledger_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path)
    append, marks = of_client.RecordLog.append, client.book.entries

    def killed(self: Any, *record: Any) -> None:
        if max((entry.values.get("begun", 0) for entry in marks()), default=0) >= 2:
            raise KeyboardInterrupt
        append(self, *record)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(of_client.RecordLog, "append", killed)
        patched.setattr("forethought.ledger.paid_run.PACE", 0.0)  # every round is marked
        client.part(*client.models(0, 8))
    done = client.part(*client.models(2, 8), client.finished(8))
    assert done.updates == 8 and client.held == ("settled", 8)


@pytest.mark.slow
def test_a_model_that_cannot_be_written_costs_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path, epsilon=4.0)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr("safetensors.torch.save_file", full)
        client.part(*client.models(0, 8), client.finished(8))
    paused = client.part()
    assert not paused.over and client.held == ("settled", 8)
    done = client.part(client.finished(8))
    assert done.over and client.held == ("settled", 8) and not (client.out / KEYS).exists()
    with pytest.raises(FederationError, match="has ended"):
        client.part()
    assert client.held == ("settled", 8)


PHASES = """
[federation]
rounds = 8
phases = [1.5, 1.5]
[[federation.client]]
name = "a"
{}
[[federation.client]]
name = "b"
"""


@pytest.mark.slow
def test_a_client_pays_for_its_own_phases(tmp_path: Path) -> None:
    client = Client(tmp_path, PHASES.format("phases = [2]"), epsilon=2.5)
    models = [client.sealing.seal(0, Model(k - 4, k, client.start)) for k in range(4, 8)]
    client.part(*models[:2])
    done = client.part(*models[2:], client.finished(4))
    (held,) = client.book.reservations("digits")
    assert held.charge.mechanism == client.agreed.planned(0) == done.statement.mechanism
    assert done.updates == 4
    require_settled(client.book, client.out, tmp_path / "a")


@pytest.mark.slow
def test_rounds_that_a_client_missed_do_not_make_later_ones_cheaper(tmp_path: Path) -> None:
    """Those of its second phase cost what they cost, not what as many of the first one do."""
    client = Client(tmp_path, PHASES.format("").replace("1.5, 1.5", "1.5, 2.5"))
    later = [client.sealing.seal(0, Model(k - 4, k, client.start)) for k in range(4, 6)]
    done = client.part(*later, client.finished(2))
    assert done.updates == 2 and client.held == ("settled", 6)


@pytest.mark.slow
def test_a_client_beyond_its_budget_releases_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB + FEDERATION)
    request, keys = from_file(path), tmp_path / "keys"
    members.make_everybody(request, "federation", keys)
    opened(tmp_path, "a", epsilon=0.5)

    def connect(*_: Any) -> Any:
        raise AssertionError("it was connected")

    with pytest.raises(OverBudgetError):
        members.take_part_in_job(
            paid_by(request, tmp_path, "a"), keys / "a", tmp_path / "out", carry=connect
        )
    assert not (tmp_path / "out" / "ledger").exists()
    with pytest.raises(JobError, match="simulation"):
        simulate_job(holders_of(paid_by(request, tmp_path, "a"), "federation"))

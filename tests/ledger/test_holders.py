"""A federation's client and a gossip's worker, paid from books of their own."""

from __future__ import annotations

import json
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


def test_a_client_that_left_begins_again_and_is_settled_once(tmp_path: Path) -> None:
    path, out = tmp_path / "job.toml", tmp_path / "out"
    path.write_text(JOB + FEDERATION)
    request, keys = from_file(path), tmp_path / "keys"
    members.make_everybody(request, "federation", keys)
    book = opened(tmp_path, "a")
    server = members.Membership.load(keys / "server", "federation")
    size = server.agreed.parameters
    sealing = Endpoint(server.agreed.run_id, SERVER, server.keys.signing, {}, size)
    start = np.zeros(size, dtype=np.float32)
    frames = [sealing.seal(0, Model(k, k, start)) for k in range(8)]
    frames.append(sealing.seal(0, Finished(8, 8, start)))

    def part(first: int, end: int, leave: bool) -> Any:
        def carry(make: Any, compute: Any) -> Any:
            asked: list[Any] = []
            driver = make(lambda to, message, frame: None, asked.append)
            for frame in frames[first:end]:
                driver.received(frame, SERVER)
                while asked:
                    driver.handle(compute(asked.pop()))
            if leave:
                driver.stopped()
            return driver

        return members.take_part_in_job(
            paid_by(request, tmp_path, "a"), keys / "a", out, carry=carry
        )

    for first in (0, 3):  # it leaves after three updates, and once more
        left = part(first, 3, leave=True)
        assert (left.reason, left.over, left.updates) == ("stopped by its owner", False, 3)
        assert len(left.statement.mechanism) == 8
        assert "stopped-early" in {caveat.code for caveat in left.statement.caveats}
        (held,) = book.reservations("digits")
        assert held.status != "settled"
    done = part(3, 9, leave=False)
    assert (done.reason, done.over, done.updates) == ("finished", True, 8)
    assert "stopped-early" not in {caveat.code for caveat in done.statement.caveats}
    require_settled(book, out, tmp_path / "a")
    assert not (out / KEYS).exists()


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

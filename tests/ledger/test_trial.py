"""Two teams train from one budget through the service; runs are killed in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("torch")

from forethought.accounting.statement import Statement
from forethought.ledger.book import Account
from forethought.ledger.remote import RemoteBook
from forethought.ledger.store import create, open_book
from forethought.training.folder import CHECKPOINT, ReleasedRounds
from forethought.values.mechanism import Budget
from ledger.serving import served

PATIENCE = 600

JOB = """
[data]
source = "digits"
holdout = 0.2
[model]
name = "linear"
[budget]
epsilon = {epsilon}
delta = 1e-5
[training]
rounds = {rounds}
batch = 128
centre = false
[run]
threads = 1
checkpoint_every = 100
[ledger]
url = "{url}"
data = "digits"
purpose = "{purpose}"
{token}
"""


def job(folder: Path, url: str, name: str, epsilon: float, rounds: int, token: str) -> Path:
    file, path = folder / f"{name}.token", folder / f"{name}.toml"
    file.write_text(token)
    named = f'token_file = "{file}"' if url.startswith("http") else ""
    path.write_text(
        JOB.format(epsilon=epsilon, rounds=rounds, url=url, purpose=f"work of {name}", token=named)
    )
    return path


def forethought(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "forethought", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out + err


@pytest.mark.slow
def test_two_teams_train_from_one_budget_and_one_is_told_what_still_fits(tmp_path: Path) -> None:
    book = create(f"sqlite:///{tmp_path / 'books.db'}", actor="owner")
    book.open_account(Account("digits", Budget(2.0, 1e-5)))
    tokens = {name: book.add_token(name, "analyst") for name in ("oncology", "cardiology")}
    watch = book.add_token("auditor", "auditor")
    book.close()
    with served(tmp_path) as (url, _):
        jobs = {name: job(tmp_path, url, name, 1.5, 120, tokens[name]) for name in tokens}
        teams = {
            name: forethought("train", str(path), "--out", str(tmp_path / name))
            for name, path in jobs.items()
        }
        outcomes = {name: ended(process) for name, process in teams.items()}
        codes = sorted(code for code, _ in outcomes.values())
        assert codes == [0, 2], outcomes
        (winner,) = (name for name, (code, _) in outcomes.items() if code == 0)
        (loser,) = (name for name, (code, _) in outcomes.items() if code == 2)
        assert not (tmp_path / loser / "statement.json").exists()
        told = re.search(r"still fits is --epsilon (\S+)", outcomes[loser][1])
        assert told is not None, outcomes[loser][1]
        # What was named does fit, and is about the largest that does.
        smaller = ("train", str(jobs[loser]), "--epsilon", told.group(1))
        code, text = ended(forethought(*smaller, "--out", str(tmp_path / loser)))
        assert code == 0, text
        statement = Statement.load(tmp_path / loser / "statement.json")
        assert statement.guarantee <= float(told.group(1)) * (1 + 1e-9)
        auditor = RemoteBook(url, watch)
        total = auditor.total("digits")
        assert 0.9 * 2.0 < total.epsilon <= 2.0
        assert list(auditor.verify(total.head)) == []
        assert {one.status for one in auditor.reservations("digits")} == {"settled"}
        assert [one.by for one in auditor.reservations("digits")] == [winner, loser]
    page = tmp_path / "digits.html"
    code, text = ended(
        forethought(
            *("ledger", "export", str(tmp_path / "books.db"), "--data", "digits"),
            *("--out", str(page)),
        )
    )
    assert code == 0, text
    shown = page.read_text("utf-8")
    for words in (f"work of {winner}", f"work of {loser}", "What did not fit", "book verifies"):
        assert words in shown
    for name in (winner, loser):
        code, text = ended(
            forethought(
                *("account", str(tmp_path / name), "--verify"),
                *("--ledger", str(tmp_path / "books.db")),
            )
        )
        assert code == 0 and "total of the data set" in text, text


def released(run: Path) -> int:
    """The number of rounds that a run may have released, as its own folder says."""
    return max(ReleasedRounds.peek(run / CHECKPOINT), default=-1) + 1


@pytest.mark.slow
def test_a_killed_run_is_charged_for_all_that_it_released_and_goes_on(tmp_path: Path) -> None:
    url, rounds = f"sqlite:///{tmp_path / 'books.db'}", 6000
    book = create(url, actor="owner")
    book.open_account(Account("digits", Budget(8.0, 1e-5)))
    path, run = job(tmp_path, url, "killed", 3.0, rounds, ""), tmp_path / "run"
    command = ("train", str(path), "--out", str(run), "--quiet")
    for at in (1, 40, 1000):
        process = forethought(*command)
        began = time.monotonic()
        try:
            while released(run) < at:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() - began < PATIENCE
                time.sleep(0.002)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.communicate()
        (held,) = book.reservations("digits")
        assert held.status == "active"
        assert rounds >= held.mark >= released(run) >= at
        assert book.verify() == []
        command = ("train", "--resume", str(run), "--quiet")
    # An owner's decision never charges less than what may have left.
    mark = book.reservation(1).mark
    with pytest.raises(ValueError, match="may have released"):
        book.end(1, mark - 1, "too few")
    code, text = ended(forethought(*command))
    assert code == 0, text
    (held,) = open_book(url, actor="owner").reservations("digits")
    assert (held.status, held.released) == ("settled", rounds)
    assert book.verify() == []

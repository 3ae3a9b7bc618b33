"""Commands of the ledger: what they print, and wrong inputs in one line."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forethought.cli import app
from forethought.jobs.job import Job, JobError, JobRequest, paying
from forethought.ledger.book import Account, Charge, OverBudgetError
from forethought.ledger.page import account_page
from forethought.ledger.store import open_book
from forethought.values.mechanism import Budget, Mechanism, Persons, Poisson, Rounds
from forethought.values.plan import Plan
from forethought.values.signing import generate


def told(*arguments: object) -> tuple[int, str]:
    """Exit status, and what was printed or refused with."""
    done = CliRunner().invoke(app, ["ledger", *map(str, arguments)])
    return done.exit_code, done.output + ("" if done.exception is None else str(done.exception))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "books.db"
    code, text = told("create", path, "--data", "patients", "--epsilon", 8, "--delta", 1e-6)
    assert code == 0 and "ε 8 at δ 1e-06" in text, text
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    made = Plan(Mechanism(Rounds(4.0, 20, Poisson(0.1))), 500, 1e-6)
    path.write_text(made.to_json())
    return path


@pytest.mark.slow
def test_the_life_of_a_book(place: Path, plan: Path, tmp_path: Path) -> None:
    code, text = told("open", place, "--data", "trials", "--epsilon", 1, "--delta", 1e-6)
    assert code == 0, text
    code, text = told(
        "reserve", place, "--data", "patients", "--plan", plan, "--purpose", "by hand", "--json"
    )
    assert code == 0 and json.loads(text)["reservation"] == 1, text
    code, text = told("show", place, "--data", "patients")
    assert code == 0 and "by hand" in text and "more runs like the last" in text, text
    code, text = told("show", place, "--json")
    accounts = json.loads(text)
    assert [one["account"]["data"] for one in accounts] == ["patients", "trials"]
    more, charge = accounts[0]["more_like_the_last"], Charge(Plan.load(plan).mechanism)
    book = open_book(f"sqlite:///{place}", actor="x")
    assert more > 0
    for _ in range(more):
        book.reserve("patients", charge)
    assert not book.fits("patients", charge)
    code, text = told("end", place, 1, "--rounds", 0, "--reason", "never began")
    assert code == 0, text
    head = book.total("patients").head
    assert told("verify", place, "--head", head)[0] == 0
    code, text = told("verify", place, "--head", "sha256:0")
    assert code == 1
    page, exported = tmp_path / "year.html", tmp_path / "book.json"
    assert told("export", place, "--data", "patients", "--out", page)[0] == 0
    assert "never began" in page.read_text("utf-8")
    assert told("export", place, "--out", exported)[0] == 0
    assert told("verify", exported)[0] == 0
    exported.write_text(exported.read_text("utf-8").replace("never began", "it had ended"))
    assert told("verify", exported)[0] == 1
    exported.write_bytes(b"\xff")
    code, text = told("verify", exported)
    assert code == 1 and "not an export" in text, text
    code, text = told("token", place, "ann", "--role", "analyst")
    assert code == 0 and book.holder(text.strip()).name == "ann"
    assert told("token", place, "ann", "--revoke")[0] == 0
    book.close()


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "{}", "--data", "x", "--epsilon", 1, "--delta", 1e-6), "exists"),
        (("create", "{}.2", "--data", "x", "--epsilon", -1, "--delta", 1e-6), "epsilon"),
        (("open", "{}", "--data", "patients", "--epsilon", 1, "--delta", 1e-6), "already"),
        (
            ("open", "{}", "--data", "x", "--epsilon", 1, "--delta", 1e-6, "--unit", "house"),
            "house",
        ),
        (
            ("open", "{}", "--data", "x", "--epsilon", 1, "--delta", 1e-6, "--until", "soon"),
            "soon",
        ),
        (("open", "{}", "--data", "x", "--epsilon", 1, "--delta", 1e-6, "--rule", "all"), "all"),
        (("show", "{}", "--data", "patient"), "did you mean 'patients'"),
        (("show", "{}.none"), "no such file"),
        (("show", "https://127.0.0.1:9"), "needs a token"),
        (("token", "{}", "ann"), "--role"),
        (("token", "{}", "ann", "--role", "boss"), "boss"),
        (("token", "https://127.0.0.1:9", "ann", "--role", "owner"), "database itself"),
        (("end", "{}", 7, "--rounds", 1, "--reason", "gone"), "7"),
        (("end", "{}", 10**23, "--rounds", 1, "--reason", "gone"), "9223372036854775807"),
        (("forget", "{}", 10**23, "--data", "patients", "--reason", "gone"), "9223372036854775807"),
        (("export", "{}", "--out", "x.pdf"), "page (.html)"),
        (("export", "{}", "--out", "x.html"), "--data"),
        (("serve", "{}", "--host", "0.0.0.0"), "plain text"),
        (("serve", "{}", "--certificate", __file__), "--certificate-key"),
        (("serve", "{}", "--certificate", "{}.c", "--certificate-key", "{}.k"), "books.db.c and"),
        (("serve", "{}", "--host", "192.0.2.1", "--plain-http"), "192.0.2.1"),
        (("show", "{}", "--token-file", __file__), "takes no token"),
        (("show", "{}?"), "without ?"),
        (
            ("end", "{}", 1, "--rounds", 0, "--reason", "x", "--token-file", "{}", "--key", "{}"),
            "a key is for",
        ),
    ],
)
def test_wrong_inputs_are_one_line(
    place: Path, arguments: tuple[Any, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORETHOUGHT_LEDGER_TOKEN", raising=False)
    code, text = told(*(str(one).format(place) for one in arguments))
    assert code != 0 and words in text, text
    assert "Traceback" not in text


def test_the_key_of_the_environment_signs_a_new_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path / "key")
    monkeypatch.setenv("FORETHOUGHT_LEDGER_KEY", str(tmp_path / "key"))
    path = tmp_path / "books.db"
    code, text = told("create", path, "--data", "x", "--epsilon", 8, "--delta", 1e-6)
    assert code == 0, text
    assert told("open", path, "--data", "y", "--epsilon", 8, "--delta", 1e-6)[0] == 0
    monkeypatch.delenv("FORETHOUGHT_LEDGER_KEY")
    code, text = told("open", path, "--data", "z", "--epsilon", 8, "--delta", 1e-6)
    assert code != 0 and "is signed" in text, text
    monkeypatch.setenv("FORETHOUGHT_LEDGER_KEY", str(tmp_path / "key.pub"))
    code, text = told("create", tmp_path / "b", "--data", "x", "--epsilon", 8, "--delta", 1e-6)
    assert code != 0 and "FORETHOUGHT_LEDGER_KEY" in text and not (tmp_path / "b").exists(), text


def test_what_was_verified_is_said(place: Path) -> None:
    code, text = told("verify", place)
    assert code == 0 and "signatures" not in text and "older copy" in text, text
    with contextlib.closing(open_book(f"sqlite:///{place}", actor="x")) as book:
        head = book.total("patients").head
    code, text = told("verify", place, "--head", head)
    assert code == 0 and "older copy" not in text, text
    signed, key = place.with_name("signed.db"), place.with_name("key")
    generate(key)
    own = "--data", "x", "--epsilon", 8, "--delta", 1e-6, "--key", key
    assert told("create", signed, *own)[0] == 0
    code, text = told("verify", signed, "--public-key", key)
    assert code == 0 and "signatures" in text, text
    exported = place.with_name("book.json")
    assert told("export", place, "--out", exported)[0] == 0
    code, text = told("verify", exported, "--token-file", key)
    assert code != 0 and "no token" in text, text


def test_a_book_of_any_name_is_verified_and_never_replaced(place: Path) -> None:
    book = place.rename(place.with_name("book.json"))
    code, text = told("verify", book)
    assert code == 0 and "verifies" in text, text
    for name in (book, f"sqlite:///{book}"):
        code, text = told("export", name, "--out", book, "--overwrite")
        assert code != 0 and "what is read here" in text, text
    assert told("verify", book)[0] == 0


def test_a_budget_that_promises_little_is_told(tmp_path: Path) -> None:
    own = "create", tmp_path / "new.db", "--data", "x", "--epsilon", 8, "--delta", 0.9
    with pytest.warns(UserWarning, match="promises little"):
        assert told(*own)[0] == 0


def test_a_series_is_of_plans_that_protect_the_same(place: Path, plan: Path) -> None:
    of_persons = plan.with_name("persons.json")
    made = Plan.load(plan)
    of_persons.write_text(made.with_(contribution=Persons(3)).to_json())
    reserve = "reserve", place, "--data", "people", "--plan", of_persons, "--plan"
    open_people = "open", place, "--data", "people", "--epsilon", 8, "--delta", 1e-6
    assert told(*open_people, "--unit", "person")[0] == 0
    code, text = told(*reserve, plan)
    assert code != 0 and "one by one" in text
    code, text = told(*reserve, of_persons)
    assert code == 0, text
    book = open_book(f"sqlite:///{place}", actor="x")
    assert [held.charge.unit for held in book.reservations("people")] == ["person"]
    book.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--epsilon", 1e23), "epsilon"),
        (("--epsilon", 1e23, "--rule", "renyi"), "epsilon"),
        (("--epsilon", 8, "--rule", "zz"), "'zz'"),
        (("--epsilon", 8, "--delta", 1e-24), "--rule gaussian"),
        (("--epsilon", 8, "--until", "2020-01-01"), "to come"),
        (("--epsilon", 8, "--rule", "renyi", "--blocks", 3), "blocks"),
        (("--epsilon", 8, "--unit", "house"), "house"),
    ],
)
def test_what_is_refused_leaves_no_book(tmp_path: Path, wrong: tuple[Any, ...], words: str) -> None:
    own = "create", tmp_path / "new.db", "--data", "x", "--delta", 1e-6
    code, text = told(*own, *wrong)
    assert code != 0 and words in text and not list(tmp_path.iterdir()), text
    assert told(*own, "--epsilon", 8)[0] == 0


def test_a_flag_names_the_book_and_the_account() -> None:
    job = Job.model_validate({"data": {"source": "digits"}})
    made = paying(JobRequest("digits", "", job), "books.db#patients").job.payer
    assert made is not None and (made.url, made.data) == ("sqlite:///books.db", "patients")
    with pytest.raises(JobError, match="names no account"):
        paying(JobRequest("digits", "", job), "books.db")
    own = {"ledger": {"url": "sqlite:///a.db", "data": "patients", "purpose": "mine"}}
    job = Job.model_validate({"data": {"source": "digits"}, **own})
    made = paying(JobRequest("digits", "", job), "https://ledger.example").job.payer
    assert made is not None and (made.url, made.data) == ("https://ledger.example", "patients")
    assert made.purpose == "mine"
    for held in ("ann:secret@host/books", "host/books?user=ann&password=secret"):
        own["ledger"]["url"] = f"postgresql://{held}"
        with pytest.raises(ValueError, match="password"):
            Job.model_validate({"data": {"source": "digits"}, **own})


@pytest.mark.slow
def test_a_refusal_names_what_still_fits_of_noise_that_falls(tmp_path: Path, place: Path) -> None:
    """The advice read the one noise of a plan that has several, and ended in that error."""
    path = tmp_path / "job.toml"
    path.write_text(
        '[data]\nsource = "digits"\n[budget]\nepsilon = 20\n'
        '[training]\nrounds = 2\nsampling = "full-batch"\nnoise_schedule = "linear"\n'
    )
    paying = ["--ledger", f"{place}#patients", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["train", str(path), *paying])
    assert isinstance(done.exception, OverBudgetError)
    assert "still fits is --epsilon" in str(done.exception)
    assert re.search(r"at noise multiplier [\d.]+ to [\d.]+\)", str(done.exception))


@pytest.mark.slow
def test_a_search_is_paid_or_refused_with_what_still_fits(tmp_path: Path, place: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        '[data]\nsource = "digits"\nholdout = 0.2\n[training]\nepochs = 2\n[budget]\nepsilon = 20\n'
    )
    tune = ["tune", str(path), "--learning-rate", "0.1", "--trials", "2"]
    paying = [*tune, "--ledger", f"{place}#patients", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, paying)
    words = str(done.exception)
    assert done.exit_code != 0 and "still fits is --epsilon" in words
    epsilon = words.rpartition("--epsilon ")[2].partition(" ")[0]
    done = CliRunner().invoke(app, [*paying, "--epsilon", epsilon])
    assert done.exit_code == 0, done.output
    book = open_book(f"sqlite:///{place}", actor="owner")
    (held,) = book.reservations("patients")
    assert (held.status, held.released, held.charge.rounds) == ("settled", 1, 1)
    assert not book.verify() and "trials" in account_page(book, "patients")
    book.close()
    done = CliRunner().invoke(
        app, ["account", str(tmp_path / "run"), "--verify", "--ledger", str(place)]
    )
    assert done.exit_code == 0, done.output


def test_a_resumed_run_keeps_its_ledger(tmp_path: Path, place: Path) -> None:
    done = CliRunner().invoke(app, ["train", "--resume", "x", "--ledger", f"{place}#patients"])
    assert done.exit_code != 0 and "drop --ledger" in str(done.exception)


def counting(path: Path, name: str, rows: list[str], ledger: str, more: str = "") -> list[str]:
    """A job that counts the rows of a table, and the command that runs it."""
    (path / f"{name}.csv").write_text("\n".join(["age,sex,id", *rows]) + "\n")
    job = path / f"{name}.toml"
    job.write_text(
        f'[data]\nsource = "csv:{name}.csv"\n{more}[budget]\nepsilon = 0.5\ndelta = 1e-7\n'
        f"[ledger]\n{ledger}\n"
        '[[statistics]]\nkind = "count"\nwhere = {sex = "F"}\n'
    )
    return ["release", str(job), "--data-dir", str(path), "--out", str(path / "runs" / name)]


def test_a_copy_of_a_table_is_told_and_paid_where_it_is_meant(tmp_path: Path, place: Path) -> None:
    assert told("open", place, "--data", "copy", "--epsilon", 1, "--delta", 1e-6)[0] == 0
    key = tmp_path / "hospital.identity"
    assert told("identity", key)[0] == 0 and told("identity", key)[0] != 0
    rows = [f"{20 + n % 60},{'FM'[n % 2]},p{n // 2}" for n in range(200)]
    own = f'url = "sqlite:///{place}"\nidentity = "{key}"\ndata = '
    done = CliRunner().invoke(app, counting(tmp_path, "first", rows, f'{own}"patients"'))
    assert done.exit_code == 0, done.exception
    command = counting(tmp_path, "second", rows[::-1], f'{own}"copy"')
    done = CliRunner().invoke(app, command)
    words = str(done.exception)
    assert done.exit_code != 0 and "'patients' under another name" in words
    assert not (tmp_path / "runs" / "second").exists()
    book = open_book(f"sqlite:///{place}", actor="owner")
    assert book.total("copy").epsilon == 0
    done = CliRunner().invoke(app, [*command, "--ledger", f"{place}#copy+patients"])
    assert done.exit_code == 0, done.exception
    counts = [len(book.reservations(name)) for name in ("patients", "copy")]
    assert counts == [2, 2]  # of the refused one nothing is charged
    kept = Job.load(tmp_path / "runs" / "second" / "job.toml")
    assert kept.statistics and kept.payer is not None and kept.payer.also == ("patients",)
    assert book.total("copy").epsilon > 0 and not book.verify()
    # By persons: other rows of one of them are enough.
    people = 'person = "id"\nrecords_per_person = 2\n[data.columns]\nage = [0, 110]\n'
    for name, some in (("third", rows[:20]), ("fourth", ["77,F,p9", "78,M,q1"])):
        account = f'{own}"{name}"'
        made = Account(name, Budget(4.0, 1e-6), unit="person")
        book.open_account(made)
        done = CliRunner().invoke(app, counting(tmp_path, name, some, account, people))
        assert (done.exit_code == 0) == (name == "third"), done.exception
    assert "1 of the 10 persons of 'third'" in str(done.exception)
    book.close()

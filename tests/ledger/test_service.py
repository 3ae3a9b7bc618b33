"""A book behind its service: the same answers, tokens, limits, lost answers, auditor's pages."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.client
import http.server
import io
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from forethought.ledger import remote
from forethought.ledger.book import (
    Account,
    BookError,
    Charge,
    NotAllowedError,
    OverBudgetError,
)
from forethought.ledger.chain import charge_values
from forethought.ledger.page import account_page
from forethought.ledger.paid_run import Ledger
from forethought.ledger.remote import AUTHORITY, RemoteBook
from forethought.ledger.service import Buckets, listening, server
from forethought.ledger.store import Store, create, open_book
from forethought.ledger.wire import error_from, error_to
from forethought.values.mechanism import (
    Budget,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    UnsupportedMechanismError,
)
from ledger.serving import served

CHARGE = Charge(Mechanism(Rounds(4.0, 10, Poisson(0.1)), Rounds(20.0, 1, FullBatch())))


@dataclass
class Site:
    """A service that answers, and its tokens by role."""

    url: str
    port: int
    book: Store
    tokens: dict[str, str]
    log: io.StringIO

    def as_(self, name: str) -> RemoteBook:
        return RemoteBook(self.url, self.tokens[name], patience=5.0)

    def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer.headers


@contextlib.contextmanager
def answering(folder: Path, **options: Any) -> Iterator[Site]:
    url = f"sqlite:///{folder / 'books.db'}"
    book = create(url, actor="owner")
    book.open_account(Account("patients", Budget(8.0, 1e-6)))
    roles: dict[str, Any] = {"ann": "analyst", "bob": "analyst", "eve": "auditor", "kim": "owner"}
    tokens = {name: book.add_token(name, role) for name, role in roles.items()}
    listener = listening("127.0.0.1", 0, certificate=None, key=None, plain=False)
    log = io.StringIO()
    made = server(book, log=log)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield Site(f"http://127.0.0.1:{port}", port, book, tokens, log)
    finally:
        made.should_exit = True
        thread.join(60)
        listener.close()
        book.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with answering(tmp_path) as found:
        yield found


def test_every_method_gives_what_the_book_itself_gives(site: Site) -> None:
    kim, ann = site.as_("kim"), site.as_("ann")
    made = kim.open_account(Account("trials", Budget(2.0, 1e-6), unit="person", until="2999-12-31"))
    assert made == site.book.account("trials") == ann.account("trials")
    assert list(ann.accounts()) == list(site.book.accounts())
    assert ann.fits("patients", CHARGE)
    held = ann.reserve("patients", CHARGE, purpose="a try")
    assert held == site.book.reservation(1) and held.by == "ann" and held.charge == CHARGE
    assert ann.begin(held.number, "run 1").status == "active"
    ann.mark(held.number, 5)
    assert ann.reservation(1).mark == 5
    total = ann.settle(held.number, 7)
    assert total == site.book.total("patients") == ann.total("patients")
    assert list(ann.reservations("patients")) == list(site.book.reservations("patients"))
    second = ann.reserve("patients", CHARGE)
    ann.begin(second.number, "run 2")
    ann.mark(second.number, 4, run="run 2", begun=3)
    for refused in (
        lambda: ann.mark(second.number, 5, run="run 1"),
        lambda: ann.settle(second.number, 4, run="run 1"),
        lambda: ann.settle(second.number, 2, run="run 2"),
    ):
        with pytest.raises(BookError, match=r"set back|had begun"):
            refused()
    kim.end(second.number, 11, "its disk is gone")
    assert ann.reservation(2).status == "ended"
    of_persons = replace(CHARGE, unit="person", mechanism=CHARGE.mechanism.first(1))
    assert ann.reserve("trials", of_persons).charge == of_persons
    with pytest.raises(BookError, match="protects a person"):
        ann.reserve("trials", CHARGE)
    persons = [bytes([one]) * 16 for one in range(9)]
    assert kim.add_persons("trials", "site=A", persons) == 9
    assert kim.add_persons("trials", "site=A", persons) == 0
    assert ann.overlaps("patients", persons) == {"trials": (9, 9)}
    assert ann.overlaps("trials", persons[3:], "site=A") == {"trials": (6, 9)}
    assert ann.overlaps("trials", persons, "site=B") == {}
    assert ann.add_records("patients", persons[:4], "of all") == 4
    assert kim.overlaps("trials", persons[2:]) == {"patients": (2, 4)}
    entry = next(one.number for one in site.book.entries() if one.kind == "records")
    assert kim.forget("patients", entry, "nobody's") == 4
    assert kim.overlaps("trials", persons[2:]) == {}
    assert list(ann.entries()) == list(site.book.entries())
    assert list(ann.entries(after=3)) == list(site.book.entries())[3:]
    head = site.book.total("patients").head
    assert list(ann.verify(head)) == [] and list(ann.verify("sha256:none")) != []
    for name in ("kim", "ann"):
        site.as_(name).close()


def test_many_persons_come_in_pieces(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "AT_ONCE", 2)
    kim, persons = site.as_("kim"), [bytes([one]) * 16 for one in range(5)]
    assert kim.add_persons("patients", "site=C", []) == 0
    assert "site=C" in kim.total("patients").by_part
    kim.add_persons("patients", "site=A", persons[4:])
    with pytest.raises(BookError, match="leave them out") as told:
        kim.add_persons("patients", "site=B", persons)
    assert "nothing was added" not in str(told.value)  # the pieces before were
    assert kim.overlaps("patients", [*persons, *persons], "site=B") == {"patients": (4, 4)}
    kim.open_account(Account("trials", Budget(1.0, 1e-6)))
    kim.add_records("patients", persons[:1], "of one")
    assert kim.overlaps("trials", persons) == {"patients": (4, 4)}
    with pytest.raises(BookError, match="16 bytes"):
        kim.overlaps("trials", [bytearray(16)])  # type: ignore[list-item]
    with pytest.raises(BookError, match="16 bytes"):
        kim.add_persons("patients", "site=B", ["ann"])  # type: ignore[list-item]


def test_refusals_come_as_themselves(site: Site) -> None:
    ann = site.as_("ann")
    with pytest.raises(OverBudgetError, match="nothing was charged") as refused:
        ann.reserve("patients", Charge(Mechanism(Rounds(0.01, 1, FullBatch()))))
    assert 0 < refused.value.epsilon_left <= 8
    with pytest.raises(BookError, match="mean 'patients'"):
        ann.account("patient")
    with pytest.raises(BookError, match="adjacency"):
        ann.reserve(
            "patients", Charge(Mechanism(Rounds(4.0, 1, FullBatch()), adjacency="zero-out"))
        )
    for error in (
        OverBudgetError("no", 0.5),
        NotAllowedError("no"),
        BookError("no"),
        UnsupportedMechanismError("no"),
        ValueError("no"),
    ):
        again = error_from(error_to(error)[1])
        assert type(again) is type(error) and str(again) == "no"


def test_roles_may_do_what_is_theirs(site: Site) -> None:
    ann, bob, eve, kim = (site.as_(name) for name in ("ann", "bob", "eve", "kim"))
    held = ann.reserve("patients", CHARGE)
    ann.begin(held.number, "run")
    for refused in (
        lambda: eve.reserve("patients", CHARGE),
        lambda: eve.mark(held.number, 1),
        lambda: bob.mark(held.number, 11),
        lambda: bob.settle(held.number, 0),
        lambda: bob.end(held.number, 0, "mine now"),
        lambda: ann.open_account(Account("other", Budget(1.0, 1e-6))),
        lambda: ann.add_persons("patients", None, [bytes(16)]),
        lambda: eve.add_records("patients", [bytes(16)], "of all"),
        lambda: ann.forget("patients", 1, "mine"),
    ):
        with pytest.raises(NotAllowedError):
            refused()
    assert site.book.reservation(held.number).status == "active"
    assert eve.total("patients") == ann.total("patients") and list(eve.verify()) == []
    kim.mark(held.number, 11)


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("method", "arguments", "name"),
    [
        ("reserve", {"data": "patients", "purpose": 3}, "purpose"),
        ("fits", {"data": "patients", "partition": [1]}, "partition"),
        ("forget", {"data": "patients", "entry": 1, "reason": None}, "reason"),
        ("add_persons", {"data": "patients", "persons": [], "partition": 7}, "partition"),
        ("entries", {"after": True}, "after"),
        ("entries", {"after": 2**70}, "after"),
    ],
)
def test_a_value_of_another_type_is_a_wrong_request(
    site: Site, method: str, arguments: dict[str, Any], name: str
) -> None:
    if method in ("reserve", "fits"):
        charge = charge_values(CHARGE)
        part = {key: arguments.pop(key) for key in ("partition",) if key in arguments}
        arguments = {**arguments, "charge": {**charge, **part}}
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    bearer = {"Authorization": f"Bearer {site.tokens['kim']}"}
    connection.request("POST", f"/v1/{method}", json.dumps(arguments), bearer)
    answer = connection.getresponse()
    assert answer.status == 400 and name in json.loads(answer.read())["message"]
    connection.close()


def test_nobody_without_a_token_learns_anything(site: Site) -> None:
    with pytest.raises(NotAllowedError):
        RemoteBook(site.url, "ft_wrong", patience=1.0).accounts()
    site.book.revoke_token("bob")
    with pytest.raises(NotAllowedError):
        site.as_("bob").accounts()
    status, text, headers = site.get("/accounts/patients")
    assert status == 401 and "patients" not in text and "Basic" in headers["WWW-Authenticate"]
    assert site.get("/health")[0] == 200
    assert site.get("/v1/accounts")[0] == 405
    for token in site.tokens.values():
        assert token not in site.log.getvalue()


def test_wrong_tokens_are_slowed_down_and_so_is_whoever_asks_too_often(site: Site) -> None:
    for _ in range(30):
        status = site.get("/accounts/patients", Authorization="Bearer ft_wrong")[0]
    assert status == 429
    for path in ("/accounts/patients", "/"):  # whose token is right does not wait for others
        assert site.get(path, Authorization=f"Bearer {site.tokens['eve']}")[0] == 200
    buckets = Buckets(rate=1.0, burst=3.0)
    assert [buckets.take("a") for _ in range(5)] == [True, True, True, False, False]
    assert buckets.take("b")


def test_each_request_is_one_line_of_the_log(site: Site) -> None:
    site.as_("ann").reserve("patients", CHARGE, purpose="not for the log")
    with pytest.raises(NotAllowedError):
        site.as_("eve").reserve("patients", CHARGE)
    lines = [json.loads(line) for line in site.log.getvalue().splitlines()]
    assert [(line["what"], line["who"], line["status"]) for line in lines] == [
        ("reserve", "ann", 200),
        ("reserve", "eve", 403),
    ]
    assert "not for the log" not in site.log.getvalue()
    assert all(line["ms"] >= 0 and line["from"] == "127.0.0.1" for line in lines)


def test_what_is_refused_at_the_door_is_in_the_log(site: Site) -> None:
    assert site.get("/none")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("GET", "/v1/total")
    answer = connection.getresponse()
    assert answer.status == 405 and answer.headers["Allow"] == "POST" and answer.read()
    connection.request("POST", "/v1/total", b" " * (5 << 20))
    answer = connection.getresponse()
    assert answer.status == 413 and json.loads(answer.read())["error"] == "value"
    connection.close()
    with socket.create_connection(("127.0.0.1", site.port)) as caller:
        caller.sendall(b"POST /v1/mark HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    until = time.monotonic() + 60
    while len(lines := site.log.getvalue().splitlines()) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert [(one["what"], one["status"]) for one in map(json.loads, lines)] == [
        ("/none", 404),
        ("/v1/total", 405),
        ("/v1/total", 413),
        ("/v1/mark", 400),
    ]


def test_hostile_bodies_are_one_line(site: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    headers = {"Authorization": f"Bearer {site.tokens['ann']}"}
    for method, body, status in (
        ("reserve", b"{", 400),
        ("reserve", b"[]", 400),
        ("reserve", b'{"data": "patients"}', 400),
        ("reserve", b'{"data": "patients", "charge": {"mechanism": 1}}', 400),
        ("mark", b'{"number": "1; drop", "rounds": 1}', 409),
        ("mark", b'{"number": 1e400, "rounds": 1}', 400),
        ("close", b"{}", 404),
        ("acting", b'{"actor": "kim", "role": "owner"}', 404),
        ("reserve", b" " * (5 << 20), 413),
    ):
        connection.request("POST", f"/v1/{method}", body, headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        assert answer.status in (status, 400, 409, 422), (method, answer.status, told)
        assert "Traceback" not in told["message"] and "\n" not in told["message"]
        assert told["error"] != "not-allowed"
        if answer.status == 413:
            connection.close()
    assert len(site.book.reservations("patients")) == 0


class Losing(http.client.HTTPConnection):
    """Loses the answer to every other request, after the service has made it."""

    count = 0

    def getresponse(self) -> Any:
        answer = super().getresponse()
        type(self).count += 1
        if type(self).count % 2:
            answer.read()
            self.close()
            raise ConnectionResetError("lost")
        return answer


def test_what_is_said_again_after_a_lost_answer_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http.client, "HTTPConnection", Losing)
    ann = site.as_("ann")
    held = ann.reserve("patients", CHARGE)
    ann.begin(held.number, "run")
    ann.mark(held.number, 3, seen=0)
    with pytest.raises(BookError, match="another process"):
        ann.mark(held.number, 4, seen=0)
    with pytest.raises(BookError, match="another process"):
        ann.settle(held.number, 4, seen=2)
    ann.settle(held.number, 3, seen=3)
    assert Losing.count >= 8
    (one,) = site.book.reservations("patients")
    assert (one.number, one.status, one.released) == (held.number, "settled", 3)
    kinds = [entry.kind for entry in site.book.entries()]
    assert kinds.count("reserve") == kinds.count("settle") == kinds.count("mark") == 1


@pytest.mark.parametrize("answer", [b"{}", b'{"error": "maintenance"}', b"0", b"[]"])
def test_a_mark_that_something_else_answered_is_not_written(answer: bytes) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        book = RemoteBook(f"http://127.0.0.1:{server.server_port}", "ft_x", patience=5.0)
        with pytest.raises(BookError, match="than a ledger"):
            book.mark(1, 3)
        thread.join()


def test_a_service_that_is_gone_is_one_line(site: Site) -> None:
    with pytest.raises(BookError, match="does not answer"):
        RemoteBook("http://127.0.0.1:9", "ft_x", patience=0.3).accounts()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://ledger.example:8760", "in plain text"),
        ("ftp://ledger.example", "is no service"),
        ("https://ledger.example/books", "is no service"),
    ],
)
def test_addresses_that_are_none_are_refused(url: str, message: str) -> None:
    with pytest.raises(BookError, match=message):
        RemoteBook(url, "ft_x")


def test_an_authority_that_is_no_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").write_text("")
    for name in ("none", "empty"):
        monkeypatch.setenv(AUTHORITY, str(tmp_path / name))
        with pytest.raises(BookError, match=AUTHORITY):
            RemoteBook("https://127.0.0.1:1", "ft_x")


def test_plain_http_is_for_this_machine(tmp_path: Path) -> None:
    with pytest.raises(BookError, match="plain text"):
        listening("0.0.0.0", 0, certificate=None, key=None, plain=False)
    with pytest.raises(BookError, match="with its key"):
        listening("127.0.0.1", 0, certificate=tmp_path / "a.pem", key=None, plain=False)
    for name in ("a.pem", "a.key"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(BookError, match="no certificate"):
        listening("0.0.0.0", 0, certificate=tmp_path / "a.pem", key=tmp_path / "a.key", plain=False)
    listening("0.0.0.0", 0, certificate=None, key=None, plain=True).close()


def certificate(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ledger")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "site.pem", folder / "site.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pem, private


@pytest.mark.slow
def test_tls_is_checked_and_the_log_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = create(f"sqlite:///{tmp_path / 'books.db'}", actor="owner")
    book.open_account(Account("patients", Budget(8.0, 1e-6)))
    token = book.add_token("ann", "analyst")
    book.close()
    pem, key = certificate(tmp_path)
    with served(tmp_path, "--certificate", str(pem), "--certificate-key", str(key)) as (url, _):
        assert url.startswith("https://")
        with pytest.raises(BookError, match="not trusted"):
            RemoteBook(url, token, patience=20).accounts()
        monkeypatch.setenv(AUTHORITY, str(pem))
        assert [one.data for one in RemoteBook(url, token).accounts()] == ["patients"]
        file = tmp_path / "token"
        file.write_text(token + "\n")
        with Ledger(url, "patients", token_file=file).paid(CHARGE.mechanism) as paid:
            paid.ahead(11)
            paid.settle()
    kinds = [json.loads(line)["what"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    life = ["fits", "reserve", "begin", "mark", "settle"]
    assert kinds == ["accounts", *life, "account"]


def test_the_page_shows_the_year_and_nothing_of_it_is_code(site: Site) -> None:
    ann, kim = site.as_("ann"), site.as_("kim")
    evil = '<script>alert(1)</script> & "quotes"'
    held = ann.reserve("patients", CHARGE, purpose=evil)
    ann.begin(held.number, "run")
    ann.settle(held.number, 5)
    lost = ann.reserve("patients", CHARGE, purpose="lost")
    ann.begin(lost.number, "run 2")
    kim.end(lost.number, 11, "the disk is gone")
    basic = base64.b64encode(f":{site.tokens['eve']}".encode()).decode()
    status, text, headers = site.get("/accounts/patients", Authorization=f"Basic {basic}")
    assert status == 200 and text == account_page(site.book, "patients")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "http" not in text.replace("http-equiv", "").replace("&lt;", "")
    for words in ("The book verifies", "the disk is gone", "5 of 11", "ann", "Refused"):
        assert words in text
    assert text.count('scope="col"') >= 8 and text.count('scope="row"') == 3
    status, index, _ = site.get("/", Authorization=f"Bearer {site.tokens['eve']}")
    assert status == 200 and 'href="/accounts/patients"' in index
    # A browser's stored password changes nothing.
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("POST", "/v1/accounts", b"{}", {"Authorization": f"Basic {basic}"})
    assert connection.getresponse().status == 401


def test_an_edited_book_is_told_on_its_page(tmp_path: Path) -> None:
    import sqlite3

    url = f"sqlite:///{tmp_path / 'books.db'}"
    book = create(url, actor="owner")
    book.open_account(Account("patients", Budget(8.0, 1e-6)))
    book.reserve("patients", CHARGE, purpose="first words")
    book.close()
    with sqlite3.connect(tmp_path / "books.db") as raw:
        raw.execute("UPDATE entries SET content = replace(content, 'first words', 'other words')")
    raw.close()
    page = account_page(open_book(url, actor="owner"), "patients")
    assert "does not verify" in page and "was changed after it was written" in page


def test_it_is_quick_enough(site: Site) -> None:
    """Printed, never asserted: the machine may be busy."""
    ann = site.as_("ann")
    times = []
    for _ in range(20):
        start = time.perf_counter()
        ann.reserve("patients", Charge(Mechanism(Rounds(1000.0, 1, FullBatch()))))
        times.append(time.perf_counter() - start)
    print(f"a reservation through the service: {1000 * sorted(times)[10]:.1f} ms")

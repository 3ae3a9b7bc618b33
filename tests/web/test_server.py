"""Who may ask the planner's server what, over real sockets on 127.0.0.1."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest
from rich.console import Console
from typer.testing import CliRunner

from forethought.cli import app
from forethought.web.planner import Settings
from forethought.web.site import Place, PlannerServer


@pytest.fixture
def server(tmp_path) -> Iterator[PlannerServer]:
    made = PlannerServer(Place(tmp_path), Settings(records=1000))
    # Its default asks twice a second whether to end.
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(30)


def ask(server, path, body=b"{}", method="POST", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=120)
    own = {"Content-Type": "application/json", "X-Forethought-Token": server.token}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {k: v for k, v in own.items() if v is not None})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.headers)


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert len(server.token) >= 43 and server.address.endswith(f"/#{server.token}")


@pytest.mark.parametrize(("error", "told"), [(ConnectionResetError, False), (KeyError, True)])
def test_a_page_that_is_closed_is_no_error_on_the_terminal(server, capsys, error, told):
    try:
        raise error("gone")
    except error:
        server.handle_error(None, ("127.0.0.1", 1))
    assert ("gone" in capsys.readouterr().err) is told


def test_the_address_is_printed_whole_on_a_narrow_terminal(monkeypatch, tmp_path):
    def ended(_server):
        raise KeyboardInterrupt

    shown = io.StringIO()
    narrow = Console(file=shown, width=30, force_terminal=True, color_system=None)
    monkeypatch.setattr("forethought.commands.command.console_for", lambda _quiet: narrow)
    monkeypatch.setattr(PlannerServer, "serve_forever", ended)
    assert CliRunner().invoke(app, ["ui", "--folder", str(tmp_path)]).exit_code == 0
    assert re.search(r"\nhttp://127\.0\.0\.1:\d+/#[\w-]{43}\n", shown.getvalue())


def test_the_page_may_load_nothing_and_holds_no_secret(server):
    status, text, headers = ask(server, "/", None, "GET", X_Forethought_Token=None)
    assert status == 200 and server.token not in text
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
    assert len(nonce) > 15 and text.count(f'nonce="{nonce}"') == 2
    for word in ("http://", "https://", "@import", "url(", "eval("):
        assert word not in text.replace("http://www.w3.org/2000/svg", "")
    other = ask(server, "/", None, "GET")[2]["Content-Security-Policy"]
    assert other != policy
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Forethought_Token": None}, 403),
        ({"X_Forethought_Token": "guess"}, 403),
        ({"X_Forethought_Token": "é"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Length": "99999999"}, 413),
        ({"Content_Length": "9" * 5000}, 413),
    ],
)
@pytest.mark.parametrize("path", ["/plan", "/save", "/start"])
def test_nobody_else_is_answered(server, tmp_path, path, headers, status):
    body = json.dumps({"name": "x.json", "settings": {}}).encode()
    if "Content_Length" in headers:
        body = b""
    assert ask(server, path, body, **headers)[0] == status
    assert list(tmp_path.iterdir()) == []


def test_what_is_asked_is_answered(server, tmp_path):
    status, text, _ = ask(server, "/start")
    assert status == 200 and json.loads(text)["records"] == 1000
    status, text, _ = ask(server, "/plan", b'{"records": 1000, "epsilon": 2.0}')
    assert status == 200 and json.loads(text)["epsilon"] <= 2.0
    origin = f"http://127.0.0.1:{server.server_address[1]}"
    body = b'{"name": "p.json", "settings": {"records": 1000}}'
    assert ask(server, "/save", body, Origin=origin)[0] == 200
    assert (tmp_path / "p.json").is_file()


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/plan", b"{", 400, "Expecting"),
        ("/plan", b"[]", 400, "a JSON object"),
        ("/plan", b'{"epsilon": 0}', 400, "epsilon must be from"),
        ("/plan", b'{"records": 10, "persons": 11, "records_per_person": 2}', 400, "11 persons"),
        ("/save", b'{"name": "../p.json"}', 400, "a file's name is"),
        ("/other", b"{}", 404, "nothing here"),
    ],
)
def test_a_mistake_is_told_in_one_line(server, path, body, status, words):
    found, text, _ = ask(server, path, body)
    assert found == status and words in json.loads(text)["error"]
    assert "Traceback" not in text and ask(server, "/start")[0] == 200


def test_noise_on_the_line_harms_nobody(server):
    for rubbish in (b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"POST /plan HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection(server.server_address, timeout=300) as line:
            line.sendall(rubbish)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 16):
                pass
    assert ask(server, "/start")[0] == 200

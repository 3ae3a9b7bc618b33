"""The status page says where a run is, on 127.0.0.1, and can be read only."""

from __future__ import annotations

import asyncio
import json

import pytest
from rich.console import Console

from forethought.holders.driving import LastHeard
from forethought.holders.server import ClientStatus, Status, StatusPage, page
from forethought.report.holders import status_table

STATUS = Status(
    "abc",
    "synchronous",
    3,
    40,
    False,
    12.0,
    (
        ClientStatus("a", True, 3, 40, 0.2, False),
        ClientStatus("b", False, 2, 40, None, True),
        ClientStatus("c", False, 2, 40, 9.0, False),
    ),
    {"conflict": 1},
    ("conflict: <b>update 2</b> of b",),
)


async def asked(request: str) -> tuple[str, str]:
    shown = StatusPage(lambda: STATUS)
    port = await shown.start(0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.replace("PORT", str(port)).encode())
        await writer.drain()
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return head, body
    finally:
        await shown.stop()


def get(path: str, host: str = "127.0.0.1:PORT", method: str = "GET") -> tuple[str, str]:
    return asyncio.run(asked(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))


def test_page_and_json_say_where_the_run_is() -> None:
    head, body = get("/")
    assert "200 OK" in head and "no-store" in head
    assert "model 3 of 40" in body and "<td>a</td><td>connected</td><td>3 of 40</td>" in body
    assert "&lt;b&gt;update 2" in body and "<b>update" not in body
    head, body = get("/status.json", "localhost:PORT")
    assert "application/json" in head and json.loads(body)["clients"][1]["absent"] is True
    assert json.loads(body) == json.loads(json.dumps(STATUS.to_dict()))


def test_anything_else_is_refused() -> None:
    assert "404" in get("/etc/passwd")[0]
    assert "405" in get("/", method="POST")[0]
    # A name that somebody pointed at 127.0.0.1 (DNS rebinding), and none at all.
    assert "403" in get("/", "evil.example:PORT")[0]
    assert "403" in asyncio.run(asked("GET / HTTP/1.1\r\n\r\n"))[0]
    # A head without an end is given up without an answer.
    assert asyncio.run(asked("GET /" + "x" * 20_000)) == ("", "")


def test_the_terminal_shows_the_same() -> None:
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as shown:
        console.print(status_table(STATUS))
    for words in ("model 3 of 40", "connected", "absent", "not connected", "never", "conflict"):
        assert words in shown.get()
    assert "finished" in page(Status("x", "r", 1, 1, True, 1.0, (), {}, ()))


def test_when_clients_were_heard_of() -> None:
    clock = [5.0]
    heard = LastHeard(2, (), lambda: clock[0])
    heard.note(1)
    clock[0] = 7.5
    assert heard.ago(0) is None and heard.ago(1) == 2.5


def test_a_port_that_is_taken_is_told_in_a_line() -> None:
    async def scenario() -> None:
        first = StatusPage(lambda: STATUS)
        port = await first.start(0)
        try:
            with pytest.raises(OSError, match="give another"):
                await StatusPage(lambda: STATUS).start(port)
        finally:
            await first.stop()

    asyncio.run(scenario())

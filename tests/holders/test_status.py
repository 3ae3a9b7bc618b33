"""The status page says where a run is, on 127.0.0.1, and can be read only."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from forethought.holders.driving import LastHeard
from forethought.holders.server import ClientStatus, Status, StatusPage, page
from forethought.report.holders import status_table
from seen import sideways

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


def test_the_page_is_told_to_a_screen_reader_and_never_loads_itself_again() -> None:
    body = get("/")[1]
    for words in ('name="viewport"', "<main>", "<caption>Clients", 'scope="col"', 'role="status"'):
        assert words in body
    # Without a script nothing else is left; and then not so soon that nobody reads to its end.
    assert body.count("http-equiv") == body.count('<noscript><meta http-equiv="refresh"') == 1


@pytest.fixture
def served() -> Iterator[tuple[str, list[Status], Any]]:
    """A page that is served: its address, what it shows (the last one), and what stops it."""
    shows, loop, ready = [STATUS], asyncio.new_event_loop(), threading.Event()
    told: list[int] = []
    shown = StatusPage(lambda: shows[-1])

    def run() -> None:
        asyncio.set_event_loop(loop)
        told.append(loop.run_until_complete(shown.start(0)))
        ready.set()
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    stop = lambda: asyncio.run_coroutine_threadsafe(shown.stop(), loop).result(30)  # noqa: E731
    yield f"http://127.0.0.1:{told[0]}/", shows, stop
    stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is missing")
def test_the_page_follows_a_run_on_a_phone_in_the_dark(
    served: tuple[str, list[Status], Any],
) -> None:
    address, shows, stop = served
    long = replace(STATUS.clients[0], name="a" * 63)
    shows.append(replace(STATUS, clients=(long,), last=("x" * 200,)))
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        phone: dict[str, Any] = {"viewport": {"width": 320, "height": 600}, "color_scheme": "dark"}
        tab = browser.new_page(**phone)
        tab.set_default_timeout(120_000)
        tab.goto(address)
        assert sideways(tab) == 0
        colours = "getComputedStyle(document.documentElement).colorScheme"
        assert "dark" in tab.evaluate(colours)
        tab.evaluate("() => { window.same = true; }")
        shows.append(replace(STATUS, version=7))
        tab.wait_for_selector("text=model 7 of 40")
        assert tab.evaluate("() => window.same")  # the same page: nobody was taken to its top
        stop()
        tab.wait_for_selector("#lost:has-text('does not answer')")
        assert tab.locator("text=model 7 of 40").count() == 1
        browser.close()

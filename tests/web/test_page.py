"""The planner's page in a real browser, driven by Playwright."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator

import pytest

import forethought as ft
from forethought.jobs.job import Job
from forethought.web.planner import Settings
from forethought.web.site import Place, PlannerServer

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
]
PATIENT = 120_000  # milliseconds: a busy machine is no fault


@pytest.fixture
def page(tmp_path) -> Iterator[tuple[PlannerServer, object, list[str]]]:
    server = PlannerServer(Place(tmp_path), Settings(records=2000))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    troubles: list[str] = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_page()
        shown.set_default_timeout(PATIENT)
        shown.on("pageerror", lambda error: troubles.append(str(error)))
        shown.on("console", lambda said: troubles.append(said.text))
        shown.on(
            "request",
            lambda asked: (
                troubles.append(asked.url)
                if not asked.url.startswith(f"http://127.0.0.1:{server.server_address[1]}/")
                else None
            ),
        )
        yield server, shown, troubles
        browser.close()
    server.shutdown()
    server.server_close()
    thread.join(30)


def drawn(shown) -> int:
    return int(shown.evaluate("document.body.dataset.drawn || 0"))


def slide(shown, name: str, where: float) -> None:
    """Move a slider, and wait until what follows from it is drawn."""
    before = drawn(shown)
    shown.locator(f"#{name}").evaluate(
        "(slider, where) => { slider.value = where; slider.dispatchEvent(new Event('input')); }",
        where,
    )
    shown.wait_for_function(f"() => Number(document.body.dataset.drawn || 0) > {before}")


def number(shown, name: str) -> float:
    text = shown.locator(f"dt:has-text('{name}') + dd").inner_text().split("\n")[0]
    return float(re.sub(r"[^\d.]", "", text))


def test_sliders_change_what_is_drawn_and_files_are_saved(page, tmp_path):
    server, shown, troubles = page
    shown.goto(server.address)
    shown.wait_for_function("() => Number(document.body.dataset.drawn || 0) > 0")
    assert number(shown, "ε, certified") == pytest.approx(3.0, rel=0.01)
    candidates = shown.locator("#front circle.candidate").count()
    assert candidates > 20 and shown.locator("#front #chosen").count() == 1
    assert shown.locator("#attack circle").count() == 7

    sigma, power = number(shown, "noise multiplier"), number(shown, "attacker")
    slide(shown, "epsilon", 0.1)
    assert number(shown, "ε, certified") < 0.3
    assert number(shown, "noise multiplier") > 2 * sigma
    assert number(shown, "attacker") < power
    slide(shown, "records", 0.9)
    slide(shown, "records_per_person", 4)
    assert "any 4 records together" in shown.locator("#numbers").inner_text()
    slide(shown, "persons", 0.3)
    assert "for one person" in shown.locator("#numbers").inner_text()
    slide(shown, "epochs", 12)
    assert "epochs" in shown.locator("#numbers").inner_text()

    shown.fill("#name", "from-the-page")
    for button, name in (("#save-plan", "from-the-page.json"), ("#save-job", "from-the-page.toml")):
        shown.click(button)
        shown.wait_for_function(
            f"() => document.getElementById('saved').textContent.includes('{name} is written')"
        )
    plan = ft.Plan.load(tmp_path / "from-the-page.json")
    assert plan.noise_multiplier == pytest.approx(number(shown, "noise multiplier"), rel=0.01)
    job = Job.load(tmp_path / "from-the-page.toml")
    assert job.training.epochs == 12 and job.data.records_per_person == 4
    shown.click("#save-plan")
    shown.wait_for_selector("#saved:has-text('exists')")
    assert [text for text in troubles if "400" not in text] == []


def test_without_the_token_nothing_is_shown(page):
    server, shown, _ = page
    shown.goto(server.address.partition("#")[0])
    shown.wait_for_selector("#error:has-text('open the whole address')")
    assert shown.locator("#numbers div").count() == 0

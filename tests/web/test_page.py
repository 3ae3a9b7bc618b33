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
from seen import sideways, unreadable

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
    shown.locator(f"#{name}-slider").evaluate(
        "(slider, where) => { slider.value = where; slider.dispatchEvent(new Event('input')); }",
        where,
    )
    shown.wait_for_function(f"() => Number(document.body.dataset.drawn || 0) > {before}")


def number(shown, name: str) -> float:
    text = shown.locator(f"dt:has-text('{name}') + dd").inner_text().split("\n")[0]
    return float(re.sub(r"[^\d.]", "", text))


def found_by_an_attacker(shown) -> int:
    return int(re.search(r"finds at most (\d+)", shown.locator("#privacy").inner_text())[1])


def test_sliders_change_what_is_drawn_and_files_are_saved(page, tmp_path):
    server, shown, troubles = page
    shown.goto(server.address)
    shown.wait_for_function("() => Number(document.body.dataset.drawn || 0) > 0")
    assert number(shown, "ε, certified") == pytest.approx(3.0, rel=0.01)
    assert shown.locator("#budgets tr").count() == 7
    assert shown.locator("#budgets tr[aria-current] th").inner_text() == "3"
    assert shown.locator("#attack circle").count() == 7
    shown.fill("#records", "1443")  # δ = 1/14430 = 6.9300…e-5, which is rounded up
    shown.wait_for_selector("#numbers:has-text('δ 6.94e-5')")

    sigma, power = number(shown, "noise multiplier"), found_by_an_attacker(shown)
    slide(shown, "epsilon", 0.1)
    assert number(shown, "ε, certified") < 0.3
    assert number(shown, "noise multiplier") > 2 * sigma
    assert found_by_an_attacker(shown) < power
    slide(shown, "records", 0.9)
    slide(shown, "records_per_person", 4)
    assert "any 4 records together" in shown.locator("#numbers").inner_text()
    before, records = drawn(shown), Settings(records=2_000_000).records
    shown.fill("#records", f"{records:,}")
    shown.fill("#persons", "1,000,000")
    shown.wait_for_function(f"() => Number(document.body.dataset.drawn) > {before}")
    shown.wait_for_selector("#numbers:has-text('for one person')")
    slide(shown, "epochs", 12)
    assert "epochs" in shown.locator("#numbers").inner_text()

    shown.fill("#name", "from-the-page")
    for button, name in (("#save-plan", "from-the-page.json"), ("#save-job", "from-the-page.toml")):
        shown.click(button)
        shown.wait_for_function(
            f"() => document.getElementById('saved').textContent.includes('{name} is written')"
        )
    plan = ft.Plan.load(tmp_path / "from-the-page.json")
    assert plan.noise_multiplier == pytest.approx(number(shown, "noise multiplier"), rel=1e-3)
    job = Job.load(tmp_path / "from-the-page.toml")
    assert job.training.epochs == 12 and job.data.records_per_person == 4
    shown.click("#save-plan")
    shown.wait_for_selector("#saved:has-text('exists')")
    shown.fill("#epsilon", "much")
    shown.wait_for_selector("#error:has-text('epsilon must be')")
    assert [text for text in troubles if "400" not in text] == []


def test_what_is_no_number_is_refused_and_not_guessed(page, tmp_path):
    server, shown, _ = page
    shown.goto(server.address)
    shown.wait_for_function("() => Number(document.body.dataset.drawn || 0) > 0")
    fields = (("epsilon", "0,5", "3"), ("epsilon", "0,050", "3"), ("epochs", "20 epochs", ""))
    for name, wrong, right in (*fields, ("epochs", "1e999", ""), ("records", "2,00", "2000")):
        shown.fill(f"#{name}", wrong)
        shown.wait_for_selector(f"#error:has-text('{name} must be')")
        shown.click("#save-job")
        shown.wait_for_selector(f"#saved:has-text('{name} must be')")
        shown.fill(f"#{name}", right)
        shown.wait_for_selector("#error:empty", state="attached")
    assert list(tmp_path.iterdir()) == []
    # What is counted is shown to the last record, with or without a comma between thousands.
    shown.fill("#records", "1,234")
    shown.wait_for_selector("#numbers:has-text('of 1,234 records')")
    shown.fill("#records", "123457")
    shown.wait_for_selector("#numbers:has-text('of 123,457 records')")


def test_numbers_from_before_are_marked_and_still_read(page):
    server, shown, _ = page
    shown.goto(server.address)
    shown.wait_for_function("() => Number(document.body.dataset.drawn || 0) > 0")
    shown.fill("#epsilon", "much")
    shown.wait_for_selector("#error:has-text('epsilon must be')")
    assert "from before" in shown.locator("#error").inner_text()
    # Faded text would have less contrast than CONTRASTS, which knows no opacity, measures.
    answer = shown.locator("#answer")
    assert answer.evaluate("(box) => getComputedStyle(box).opacity") == "1"
    assert answer.evaluate("(box) => getComputedStyle(box).outlineStyle") == "dashed"


def test_what_a_blanked_record_has_to_fear_is_told(page, tmp_path):
    server, shown, _ = page
    shown.goto(server.address)
    for adjacency, words in (("zero-out", "recognises"), ("add-or-remove", "finds")):
        shown.wait_for_function("() => Number(document.body.dataset.drawn || 0) > 0")
        found = shown.evaluate(
            "async (adjacency) => { const found = await ask('/plan', settings());"
            "draw({ ...found, adjacency });"
            "return document.getElementById('privacy').textContent; }",
            adjacency,
        )
        assert f"all the others {words}" in found


def test_without_a_script_it_says_what_to_do(page):
    server, shown, _ = page
    bare = shown.context.browser.new_context(java_script_enabled=False).new_page()
    bare.goto(server.address)
    assert "forethought plan" in bare.inner_text("body")


def test_without_the_token_nothing_is_shown(page):
    server, shown, _ = page
    shown.goto(server.address.partition("#")[0])
    shown.wait_for_selector("#error:has-text('open the whole address')")
    assert shown.locator("#numbers div").count() == 0


# Every text that is seen, with the contrast of its colour to what is behind it (WCAG 2.2, 1.4.3).
CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : Math.pow((share + 0.055) / 1.055, 2.4);
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (box) => {
    for (let at = box; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")].filter((box) => box.checkVisibility() &&
    [...box.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())).map(
    (box) => {
      const style = getComputedStyle(box);
      const own = light(rgb(box.closest("svg") ? style.fill : style.color));
      const other = light(behind(box));
      const ratio = (Math.max(own, other) + 0.05) / (Math.min(own, other) + 0.05);
      return [ratio, box.tagName + " " + box.textContent.trim().slice(0, 40)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_it_fits_is_read_and_is_reached_by_keys(page, width, scheme):
    server, shown, _ = page
    shown.set_viewport_size({"width": width, "height": 900})
    shown.emulate_media(color_scheme=scheme)
    shown.goto(server.address)
    shown.wait_for_function("() => Number(document.body.dataset.drawn || 0) > 0")
    shown.locator("summary").click()
    # Nothing scrolls sideways, and on a wide screen little of it is empty.
    assert sideways(shown) == 0 and unreadable(shown) == []
    edges = shown.evaluate(
        "() => ['settings', 'answer'].map((id) => {"
        "const box = document.getElementById(id).getBoundingClientRect();"
        "return [box.left, box.right, box.top, box.bottom]; })"
    )
    (left, *_, bottom), (_, right, top, _) = edges
    assert left < 30 and right > width - 30 and (top < bottom) == (width > 800)
    background = shown.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    low = [row for row in shown.evaluate(CONTRASTS) if row[0] < 4.5]
    assert low == []
    # Tab goes through every field and slider that is seen, each with a name, and a key moves them.
    reached, named = (
        set(),
        shown.evaluate(
            "() => [...document.querySelectorAll('input, button')].filter((one) =>"
            "one.checkVisibility()).map((one) => one.id)"
        ),
    )
    shown.locator("body").press("Tab")
    for _ in range(len(named) + 2):
        reached.add(shown.evaluate("() => document.activeElement.id"))
        shown.keyboard.press("Tab")
    assert set(named) <= reached
    for label in ("Privacy budget ε", "Records", "Passes over the data (epochs)"):
        slider = shown.get_by_role("slider", name=label, exact=True)
        said, before = slider.get_attribute("aria-valuetext"), drawn(shown)
        slider.focus()
        shown.keyboard.press("ArrowRight")
        shown.wait_for_function(f"() => Number(document.body.dataset.drawn) > {before}")
        assert said and slider.get_attribute("aria-valuetext") != said
    scopes = "() => [...document.querySelectorAll('th')].map((cell) => cell.scope)"
    assert set(shown.evaluate(scopes)) == {"row", "col"}


def test_it_prints_on_two_pages(page, tmp_path):
    server, shown, _ = page
    shown.goto(server.address)
    shown.wait_for_function("() => Number(document.body.dataset.drawn || 0) > 0")
    shown.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True)
    assert 1 <= len(re.findall(rb"/MediaBox", (tmp_path / "page.pdf").read_bytes())) <= 2

"""Pages on paper: printed by the command, laid out on A4, and what is said without a browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forethought.report import page as pdf
from forethought.report.page import PrintingError, print_pdf, report_page, write_pages
from forethought.training.folder import RunSummary
from forethought.training.shapes import Shape, Shapes, Surface
from seen import labels, sideways, unreadable

CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run with results of ten classes: the widest table that is shown."""
    from forethought.jobs.job import Job, JobRequest
    from forethought.jobs.train import prepare
    from forethought.jobs.train import run as train

    text = '[data]\nsource = "digits"\n[budget]\nepsilon = 3.0\n[training]\nrounds = 12\n'
    folder = tmp_path_factory.mktemp("runs") / "digits"
    train(prepare(JobRequest("digits", text, Job.parse(text))), folder)
    write_pages(RunSummary.load(folder))
    return folder


def pages(path: Path) -> list[tuple[float, float]]:
    """Width and height of each page, in points."""
    content = path.read_bytes()
    assert content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
    found = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content)
    return [(float(width), float(height)) for width, height in found]


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_command_prints_report_and_statement(run, monkeypatch, capsys):
    import sys

    from forethought.cli import main

    monkeypatch.setattr(sys, "argv", ["forethought", "report", str(run), "--pdf"])
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
    assert "report.pdf" in capsys.readouterr().out
    for name in ("report.pdf", "statement.pdf"):
        sizes = pages(run / name)
        assert 1 <= len(sizes) <= (2 if name == "statement.pdf" else 4)
        for width, height in sizes:
            assert (width, height) == (pytest.approx(595, abs=2), pytest.approx(842, abs=2))
    assert not list(run.glob(".*.part"))


@contextmanager
def shown(page: Path, width: int, scheme: str, media: str = "screen") -> Iterator[Any]:
    """A page of HTML in a browser."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        tab.emulate_media(media=media)
        tab.goto(page.as_uri())
        yield tab
        browser.close()


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("name", ["report", "statement"])
def test_nothing_is_cut_off_on_paper(run, name):
    # What A4 leaves between its margins, at 96 pixels an inch; a dark screen stays white paper.
    with shown(run / f"{name}.html", 672, "dark", "print") as tab:
        wide = tab.evaluate(
            """() => [...document.querySelectorAll("main *")].filter(
                (box) => box.getBoundingClientRect().right > innerWidth + 1 &&
                    !box.closest("svg")).map((box) => box.outerHTML.slice(0, 80))"""
        )
        assert wide == []
        colours = tab.evaluate(
            """() => ["body", ".promise p"].map((place) => {
                const style = getComputedStyle(document.querySelector(place));
                return [style.backgroundColor, style.color];
            })"""
        )
        assert colours[0] == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
        assert colours[1][1] == "rgb(0, 0, 0)"


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_statement_fits_a_phone(run, scheme):
    with shown(run / "statement.html", 375, scheme) as tab:
        assert sideways(tab) == 0
        top = [tab.locator(place).first.bounding_box() for place in ("p.lead", "strong", "svg")]
        # Sentence, number and picture one below the other, on the first screen.
        assert [box["y"] for box in top] == sorted(box["y"] for box in top)
        assert top[-1]["y"] + top[-1]["height"] < 800
        assert tab.locator("h1 + p.lead").inner_text().startswith("Of 100 records that this model")


LONG = "concentration of something"
SHAPES = Shapes(
    ("ill",),
    "in log-odds",
    (0.1,),
    (
        Shape(LONG, "number", (-12000.0, 0.0, 12000.0), ((-1.0, 0.25, 0.75),), (0.1, 0.1, 0.1)),
        Shape("admitted", "day", ("2019-01-01", "2020-01-01", "2021-12-31"), ((-0.1, 0.0, 0.1),)),
        Shape("ward", "word", (LONG, "B"), ((0.0125, -0.0125),), (0.2, 0.2)),
        *(Shape(f"c{n}", "number", (0.0, 1.0), ((-0.001, 0.001),)) for n in range(6)),
    ),
    (Surface((LONG, "c0"), ((-12000.0, 12000.0), (0.0, 1.0)), (((-0.4, 0.1), (0.2, 0.3)),)),),
)


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("width", [375, 1280])
def test_a_report_with_many_pictures_is_read_on_any_screen(run, width):
    page = run / "many.html"
    page.write_text(report_page(replace(RunSummary.load(run), shapes=SHAPES)), encoding="utf-8")
    with shown(page, width, "light") as tab:
        assert sideways(tab, "html") == 0  # ten classes are too many for a phone
        assert unreadable(tab) == [] and tab.locator("svg:visible").count() < 10
        # Keys reach every picture with points, and the line that unfolds the others.
        summary = tab.locator("summary")
        summary.focus()
        tab.keyboard.press("Enter")
        assert tab.locator("svg:visible").count() == len(SHAPES.columns) + 1 + 3
        for chart in tab.locator("svg.chart").all():
            chart.focus()
            for key in ("ArrowLeft", "ArrowRight", "ArrowRight"):
                tab.keyboard.press(key)
                assert chart.locator(".tip").text_content()
                assert unreadable(tab) == []
        # A heat map says how far its darkest cells are from 0, below and above.
        assert {"-0.4", "+0.3"} <= {text for *_, text in labels(tab)}
        assert sideways(tab, "html") == 0


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_report_is_read_with_keys_and_a_screen_reader(run):
    with shown(run / "report.html", 320, "dark") as tab:
        # A screen reader hands keys on to a slider alone, and reads out what it says then.
        charts = tab.get_by_role("slider").all()
        assert len(charts) == tab.locator("svg.chart").count() > 1
        for chart in charts:
            chart.focus()
            said = chart.get_attribute("aria-valuetext")
            for key, other in (("Home", True), ("ArrowRight", True), ("End", True)):
                tab.keyboard.press(key)
                now = chart.get_attribute("aria-valuetext")
                assert (now != said) == other and now == chart.locator(".tip").text_content()
                said = now
            assert chart.get_attribute("aria-valuenow") == chart.get_attribute("aria-valuemax")
        # What does not fit is scrolled with keys; what fits is no stop on their way.
        stops = tab.evaluate(
            """() => [...document.querySelectorAll(".wide")].map((box) =>
                [box.scrollWidth > box.clientWidth + 1, box.tabIndex === 0])"""
        )
        assert {wide for wide, _ in stops} == {True, False}
        assert all(wide == reached for wide, reached in stops)


def test_without_a_browser_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(pdf.shutil, "which", lambda _name: None)
    with pytest.raises(PrintingError, match=r"install chromium, or.*report\.html"):
        print_pdf(tmp_path / "report.html", tmp_path / "report.pdf")


def test_a_browser_that_fails_leaves_nothing(monkeypatch, tmp_path):
    false = shutil.which("false")
    if false is None:
        pytest.skip("there is no program that fails")
    monkeypatch.setattr(pdf, "browser", lambda: false)
    (tmp_path / "report.html").write_text("<p>x</p>")
    with pytest.raises(PrintingError, match="could not print"):
        print_pdf(tmp_path / "report.html", tmp_path / "report.pdf")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

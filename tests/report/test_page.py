"""The pages: nothing from elsewhere, nothing unescaped, every number of the run; a real browser."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import forethought as ft
from forethought.accounting.interval import at_most
from forethought.accounting.statement import StatedRelease, Statement
from forethought.cli import main
from forethought.report import page as charts
from forethought.report.page import report_page, statement_page, write_pages, write_statement
from forethought.training.folder import RunSummary
from forethought.training.metrics import measured
from forethought.training.shapes import Shape, Shapes, Surface
from forethought.values import signing
from forethought.values.caveats import Caveat
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds
from forethought.values.plan import Plan

HOSTILE = "<script>alert(1)</script>&\"'"
TARGETS = np.array([0, 1, 1] * 20)
VOID = {"meta", "line", "circle", "rect", "path", "stop", "br"}


class Page(HTMLParser):
    """Collects text and attributes, and fails on elements that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.points: list[list[object]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.addresses += [values[name] for name in ("src", "href") if name in values]
        if "data-points" in values:
            self.points.append(json.loads(values["data-points"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def summary(folder: Path, **options) -> RunSummary:
    plan = Plan(Mechanism(Rounds(1.2, 30, Poisson(0.1)), adjacency="add-or-remove"), 1000, 1e-5)
    rows = tuple(
        {"round": str(n), "accuracy": str(0.5 + n / 100), "epsilon": str(n / 10)}
        for n in (10, 20, 30)
    )
    return RunSummary(folder, plan, ft.account(plan), rows, (), **options)


def test_a_report_has_every_number_of_the_run(tmp_path):
    results = measured(
        np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]] * 20), TARGETS, (HOSTILE, "yes")
    )
    text = report_page(summary(tmp_path, results=results))
    page = Page(text)
    assert "<script>alert" not in text and HOSTILE in page.text
    # Right are 40 of 60, and no model is as good.
    cells = [word for word in page.words if re.fullmatch(r"[\d.]+( to [\d.]+)?", word)]
    assert cells[:3] == ["0.667", "0.533 to 0.784", "0.667"]
    assert [point[2] for point in page.points[0]] == [
        "round 10: 60.0%",
        "round 20: 70.0%",
        "round 30: 80.0%",
    ]
    # The attacker's curve: detections at most, never below blind guessing, ends at 1.
    drawn = [float(point[2].rpartition(" ")[2].rstrip("%")) for point in page.points[2]]
    assert drawn == sorted(drawn) and drawn[-1] == 100
    assert all(value >= number - 0.06 for number, value in enumerate(drawn))
    assert set(page.addresses) == {"statement.html"}
    assert not re.search(r"https?://|url\(|@import", text)


def test_small_errors_of_a_regression_are_shown(tmp_path):
    targets = np.arange(16) / 4096
    text = report_page(summary(tmp_path, results=measured(targets + 2**-14, targets, None)))
    page = Page(text)
    # Every answer is 2**-14 too large; without a model the mean is 4/4096 away in the mean.
    cells = page.words[page.words.index("mean absolute error") + 1 :][:3]
    assert cells == ["6.1e-05", "6.1e-05 to 6.11e-05", "0.000977"]


def test_wide_names_and_days_stay_inside_their_figure(tmp_path):
    word = Shape("ward", "word", ("W" * 18, "病" * 30, "A"), ((1.0, -1.0, 0.0),))
    days = ("2010-01-01", "2019-12-31")
    pair = Surface(("age", "visit"), ((0.0, 1.0), days), (((0.0, 1.0), (1.0, 0.0)),))
    shapes = Shapes(("y",), "log-odds", (0.0,), (word,), (pair,))
    text = report_page(summary(tmp_path, shapes=shapes))
    narrowed = re.findall(r'textLength="(\d+)"[^>]*><title>([^<]*)', text)
    assert [name for _, name in narrowed] == ["W" * 18, "病" * 30, *days]
    assert all(int(length) < 130 for length, _ in narrowed)
    # A column's name under its curve is cut where the figure ends; the caption has all of it.
    for name, most in (("病" * 60, 30), ("a" * 120, 50), ("body_mass_index_kg_per_m2", 25)):
        curve = Shape(name, "number", (0.0, 1.0), ((1.0, -1.0),))
        shapes = Shapes(("y",), "log-odds", (0.0,), (curve,), ())
        text = report_page(summary(tmp_path, shapes=shapes))
        under = re.search(r'class="axis"[^>]*>([^<]*)', text)[1]
        assert name.startswith(under.rstrip("…")) and 20 < len(under) <= most
        assert (under == name or under.endswith("…")) and f"<figcaption>{name}: " in text


def test_statistics_are_not_told_of_weights_and_derivatives(tmp_path):
    made = Mechanism(Rounds(1.2, 1, FullBatch()), adjacency="add-or-remove")
    of_model, of_table = (
        ft.account(made, 1e-5, not_covered=some)
        for some in ((), (Caveat("statistics", "a count"),))
    )
    for page in (Statement.to_markdown, lambda one: Page(statement_page(one)).text):
        assert "initial weights" in page(of_model) and "derivatives" in page(of_model)
        assert "initial weights" not in page(of_table) and "derivatives" not in page(of_table)
    lead = Page(statement_page(of_table)).text.partition(" finds ")[0]
    assert "model" not in lead and "records that" in lead
    # The file has the sentences that it always had, so that earlier ones are read.
    assert Statement.from_json(of_table.to_json()) == of_table
    assert "initial weights" in of_table.to_json()


def test_a_statement_says_what_the_markdown_says(tmp_path):
    statement = summary(tmp_path).statement
    page = Page(statement_page(statement, HOSTILE))
    for sentence in statement.sentences()[:2]:
        assert sentence in page.text
    for text in (*statement.assumptions, *statement.not_covered):
        assert str(text)[1:] in page.text
    for rate, power in statement.attack:
        assert f"{rate:.1%}" in page.text and at_most(power, ".2%") in page.text
    assert at_most(statement.epsilon.upper, ".6g") in page.text
    assert page.addresses == []


def test_a_statement_without_a_guarantee_has_no_scale(tmp_path):
    plan = Plan(Mechanism(Rounds(0.0, 3, Poisson(0.1)), adjacency="add-or-remove"), 1000, 1e-5)
    text = statement_page(ft.account(plan))
    page = Page(text)
    assert "not differentially private" in page.text and "Why there is no guarantee" in page.text
    assert "<svg" not in text and 'class="lead"' not in text


def test_a_run_without_noise_has_a_report_all_the_same(tmp_path):
    plan = Plan(Mechanism(Rounds(0.0, 3, Poisson(0.1)), adjacency="add-or-remove"), 1000, 1e-5)
    rows = tuple({"round": str(n), "accuracy": "0.5", "epsilon": "inf"} for n in (1, 2, 3))
    page = Page(report_page(RunSummary(tmp_path, plan, ft.account(plan), rows, ())))
    assert "not differentially private" in page.text and len(page.points) == 1
    assert "less may be spent" not in page.text  # there is no search whose ends could be apart


def test_three_digits_are_no_power_of_ten():
    assert [charts.short(value) for value in (999.4, 999.7, 1000.0)] == ["999", "999.7", "1000"]


@pytest.mark.thinned
@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.2, 30.0, 1e6])
@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out", "replace-one"])
def test_a_statement_begins_with_a_sentence_a_number_and_a_picture(sigma, adjacency):
    made = Mechanism(Rounds(sigma, 30, Poisson(0.1)), adjacency=adjacency)
    statement = ft.account(made, 1e-5, group=2)
    text = statement_page(statement, "T")
    power = statement.attack[1][1]
    found = text.count('class="found"')
    # Upward, never below what blind guessing finds, and the same in words, number and picture.
    assert max(1, 100 * power - 1e-6) <= found <= min(100, 100 * power + 1)
    assert found + text.count('class="missed"') == 100 and text.count('class="blind"') == 1
    page = Page(text)
    words = [one for one in page.words if one.strip()]
    assert words[2].startswith("Of 100 groups of 2 records that such a model would learn from")
    assert f"on average at most {found}, if 1 in 100" in words[2] and words[3] == f"{found} of 100"
    # Where presence is not protected, no sentence speaks of it.
    assert ("recognises" in words[2]) == (adjacency != "add-or-remove")
    for said in (page.text, statement.to_markdown()):
        assert ("together was used" in said) == (adjacency == "add-or-remove")
        assert ("what any 2 records together say" in said) == (adjacency != "add-or-remove")
    # A screen reader reads the sentence in place of the picture; nothing runs.
    assert re.search(r'<svg[^>]*role="img"[^>]*aria-labelledby="dots-title dots-words"', text)
    assert f'<desc id="dots-words">{words[2]}</desc>' in text and "<script" not in text


def test_a_record_that_is_a_person_is_called_one():
    plan = ft.plan(examples=3000, persons=900, records_per_person=4, budget=ft.Budget(3.0, 1e-5))
    statement = ft.account(plan)
    assert "declared" not in statement.hyperparameters
    text = Page(statement_page(statement)).text
    assert "Of 100 persons that" in text and "All that a person has" in text
    for page in (text, statement.to_markdown()):
        assert "any one person" in page and "persons in the data" in page
        assert "several records" not in page and "records protected" not in page


@pytest.mark.parametrize(
    "files",
    [None, {"federation.json": "{}", "transcript.json": "{}"}, {"transcript.json": "{}"}],
)
def test_a_clients_statement_has_a_page(tmp_path, monkeypatch, capsys, files):
    ft.account(Mechanism(Rounds(1.2, 30, Poisson(0.1))), 1e-5).save(tmp_path, files)
    monkeypatch.setattr(sys, "argv", ["forethought", "report", str(tmp_path)])
    with contextlib.suppress(SystemExit):
        main()
    assert "differentially private" in capsys.readouterr().out
    assert "Of 100 records" in (tmp_path / "statement.html").read_text(encoding="utf-8")


def test_headings_are_in_order_and_tables_have_scopes(tmp_path):
    for text in (statement_page(summary(tmp_path).statement), report_page(summary(tmp_path))):
        levels = [int(level) for level in re.findall(r"<h([1-6])>", text)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(later <= one + 1 for one, later in itertools.pairwise(levels))
        assert "<th>" not in text and '<th scope="row">' in text
    order = ["protected, and against", "not covered", "checked, and by whom", "believed", "annex"]
    shown = statement_page(summary(tmp_path).statement)
    places = [re.search(f"<h2>[^<]*{name}", shown).start() for name in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "nobody, as far as"),
        ({"refuted": False}, "an audit: not refuted"),
        ({"refuted": True}, "an audit: REFUTED"),
        ({"refuted": "<b>no</b>"}, "nobody, as far as"),
        ({"refuted": False, "plan": "sha256:0"}, "nobody, as far as"),
        ({"refuted": False, "schema": "another"}, "nobody, as far as"),
        ('{"refuted": false}', "nobody, as far as"),
        ("[" * 5000, "nobody, as far as"),
    ],
)
def test_what_was_checked_has_its_evidence(tmp_path, content, said):
    made = summary(tmp_path)
    if isinstance(content, dict):
        own = {"schema": "forethought/audit/1", "plan": made.statement.plan}
        content = json.dumps({**own, **content})
    if content is not None:
        (tmp_path / "audit.json").write_text(content, encoding="utf-8")
    ran = made.statement.of_run([StatedRelease("sums", 30, 1.2)])
    write_pages(replace(made, statement=ran))
    page = Page((tmp_path / "statement.html").read_text(encoding="utf-8"))
    assert said in page.text and "<b>" not in page.text
    for evidence in ("its transcript, round by round", "tools/verify.py", ran.plan[:19]):
        assert evidence in page.text


def test_a_signature_beside_a_statement_is_shown_while_it_fits(tmp_path):
    made = ft.account(Mechanism(Rounds(1.2, 30, Poisson(0.1))), 1e-5).save(tmp_path)
    _, name = signing.generate(tmp_path / "key.pem")
    envelope = signing.attest({}, json.loads(made.to_json()), tmp_path / "key.pem")
    (tmp_path / "statement.intoto.json").write_text(envelope, encoding="utf-8")
    assert f"Ed25519 key {name}" in write_statement(tmp_path).read_text(encoding="utf-8")
    ft.account(Mechanism(Rounds(1.1, 30, Poisson(0.1))), 1e-5).save(tmp_path)
    assert name not in write_statement(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "points",
    [[(1, 0.5), (2, 0.5)], [(1, -3.0), (2, 1e9)], [(0, 0), (1e-9, 1e-9)], [(5, 7), (5, 7)]],
)
def test_any_curve_is_drawn_inside_its_frame(points):
    page = Page(f"<p>{charts.curve(points, 'a', 'b')}</p>")
    for x, y, _ in page.points[0]:
        assert 0 <= x <= charts.WIDTH and 0 <= y <= charts.HEIGHT


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed")
def test_a_browser_shows_the_pages_without_an_error(tmp_path):
    curve = Shape("x" * 90, "number", (0.0, 1.0), ((1.0, -1.0),))
    write_pages(summary(tmp_path, shapes=Shapes(("y",), "log-odds", (0.0,), (curve,), ())))
    script = """<script>
      const chart = [...document.querySelectorAll("svg.chart")][1];
      chart.dispatchEvent(new PointerEvent("pointermove", {clientX: -1e6}));
      const tip = chart.querySelector(".tip").textContent, root = document.documentElement;
      document.title = `${window.faults} faults, ${tip}, ${root.scrollWidth - innerWidth} over`;
    </script>"""
    page = tmp_path / "report.html"
    watch = "<script>window.faults = 0; window.onerror = () => { window.faults++ }</script>"
    text = page.read_text(encoding="utf-8").replace("<body>", f"<body>{watch}")
    page.write_text(text.replace("</body>", f"{script}</body>"), encoding="utf-8")
    quiet = ("sync", "background-networking", "component-update", "quic", "gpu")
    done = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--no-first-run",
            *(f"--disable-{name}" for name in quiet),
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=500,900",
            "--hide-scrollbars",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "<title>0 faults, round 10: 60.0%, 0 over</title>" in done.stdout

"""What a statement is about: kept, shown as text, compared with the model file, never required."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from forethought.accounting.statement import (
    About,
    Evidence,
    Statement,
    StatementError,
    account,
    json_schema,
)
from forethought.accounting.verification import check
from forethought.report.page import statement_page
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.serialisation import build

HASH = "sha256:" + "ab" * 32
SAID = About("Ward 3", "2026-03-01", "early cultures", "Dr A. Example", HASH)


def statement(about: About | None) -> Statement:
    found = account(Mechanism(Rounds(1.1, 50, Poisson(0.01))), 1e-5)
    return replace(found, about=about)


def test_it_is_kept_and_shown() -> None:
    found = statement(SAID)
    again = Statement.from_json(found.to_json())
    assert again.about == SAID and again == found
    jsonschema.validate(json.loads(found.to_json()), json_schema())
    jsonschema.validate(json.loads(statement(None).to_json()), json_schema())
    assert "about" not in json.loads(statement(None).to_json())
    for text in ("Ward 3", "2026-03-01", "early cultures", "Dr A. Example", HASH):
        assert text in found.to_markdown() and text in statement_page(found)


def test_another_model_file_is_noticed() -> None:
    checked = check(statement(SAID), model=HASH)
    assert "as its owner says" in dict(checked.not_checked)["about"]
    assert "data, date, purpose, responsible" in dict(checked.not_checked)["about"]
    with pytest.raises(StatementError, match="model file beside"):
        check(statement(SAID), model="sha256:" + "ac" * 32)
    assert "not stated" in dict(check(statement(None)).not_checked)["about"]


def test_an_edited_purpose_breaks_the_checksum() -> None:
    text = statement(SAID).to_json().replace("early cultures", "advertising")
    with pytest.raises(StatementError, match="edited"):
        Statement.from_json(text)


@pytest.mark.parametrize(
    "files",
    [
        {"../plan.json": HASH},
        {"a/b.json": HASH},
        {"statement.json": HASH},
        {".plan.json": HASH},
        {"plan.json": "sha256:1"},
        {f"p{n}.json": HASH for n in range(21)},
        ["plan.json"],
    ],
)
def test_evidence_is_a_few_files_beside_the_statement(files: object) -> None:
    with pytest.raises((ValueError, TypeError), match="evidence"):
        build(Evidence, {"code": HASH, "files": files})


@pytest.mark.parametrize(
    "values",
    [
        {"data": ""},
        {"data": "two\nlines"},
        {"purpose": "x" * 501},
        {"responsible": 3},
        {"model": "md5:abc"},
    ],
)
def test_what_is_no_line_of_text_is_refused(values: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match="about"):
        About(**values)  # type: ignore[arg-type]


def test_what_is_written_is_text_on_every_page() -> None:
    nasty = About(data="<script>alert(1)</script> [x](http://y) | a_b `c` # *d*")
    page, text = statement_page(statement(nasty)), statement(nasty).to_markdown()
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert "<script>" not in text and "[x](" not in text and r"\[x\]" in text

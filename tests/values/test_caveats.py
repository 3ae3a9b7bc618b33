"""Caveats: codes with words of their own, one order, a round trip, and old sentences recognised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.values.caveats import KINDS, ROLES, Caveat, caveat, caveats, of_role
from forethought.values.serialisation import plain


def example(code: str, detail: str = "red, {green}") -> Caveat:
    return Caveat(code, detail if KINDS[code].detailed else "")


@pytest.mark.parametrize("code", KINDS)
def test_every_kind_has_words_a_reason_and_a_round_trip(code: str) -> None:
    made = example(code)
    assert Caveat.from_dict(json.loads(json.dumps(plain(made)))) == made
    assert made.sentence
    assert made.kind.reason
    assert made.role in ROLES
    assert not made.sentence.endswith(".")
    assert ("red, {green}" in made.sentence) == made.kind.detailed


@pytest.mark.parametrize("code", [code for code in KINDS if not KINDS[code].detailed])
def test_a_sentence_of_an_older_file_finds_its_code(code: str) -> None:
    assert caveat(KINDS[code].sentence + ".") == Caveat(code)


def test_sentences_tell_kinds_apart() -> None:
    sentences = [kind.sentence for kind in KINDS.values()]
    assert len(set(sentences)) == len(sentences)


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(KINDS))))
def test_the_order_is_the_registry_s_whatever_the_order_given(codes: list[str]) -> None:
    found = caveats(example(code) for code in codes)
    assert found == caveats(reversed([example(code) for code in codes]))
    assert {one.code for one in found} == set(codes)
    assert len(found) == len(set(codes))
    by_role = [one for role in ROLES for one in of_role(found, role)]
    assert tuple(by_role) == found


def test_words_of_a_user_are_kept() -> None:
    assert caveats(["means of the columns."]) == (Caveat("stated", "means of the columns"),)


def test_what_is_no_caveat_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown caveat 'made-up'"):
        Caveat("made-up")
    with pytest.raises(ValueError, match="takes no detail"):
        Caveat("search", "more")
    with pytest.raises(ValueError, match="needs a detail"):
        Caveat("stated")
    for one in ("means of the columns", 3):
        with pytest.raises(TypeError, match="several caveats"):
            caveats(one)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="or a sentence"):
        caveats([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"unknown \['role'\]"):
        Caveat.from_dict({"code": "search", "detail": "", "role": "fact"})

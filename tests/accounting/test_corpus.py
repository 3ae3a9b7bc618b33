"""No certified interval is wider than when it was first written down; all of them: corpus.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "accounting_corpus", Path(__file__).parent / "corpus.py"
)
assert _SPEC is not None and _SPEC.loader is not None
corpus = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = corpus
_SPEC.loader.exec_module(corpus)


@pytest.mark.parametrize(
    "start", [27, *(pytest.param(start, marks=pytest.mark.slow) for start in (7, 17, 37))]
)
def test_a_sample_of_the_corpus_lies_inside(start):
    before = corpus.written()
    assert len(before) == corpus.CASES
    for number in range(start, corpus.CASES, 97):
        now = corpus.found(number)
        assert not corpus.moved_outward(now, before[number]), (number, now, before[number])

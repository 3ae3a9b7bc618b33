from __future__ import annotations

import bz2
import gzip
import lzma
import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.data import DataError, load
from forethought.data.files import data_folder, find, read, resolve, spelled, word, written


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_reads_plain_and_compressed_alike(tmp_path: Path, compress):
    path = tmp_path / "file"
    path.write_bytes(compress(b"some text " * 100))
    assert read(path) == b"some text " * 100


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("harm", ["truncated", "flipped"])
def test_damage_is_named(tmp_path: Path, compress, harm):
    content = bytearray(compress(os.urandom(4000)))
    if harm == "truncated":
        del content[-50:]
    else:
        content[2000] ^= 0xFF
    path = tmp_path / "file.compressed"
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"file\.compressed: found a"):
        read(path)


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


def test_folder_comes_from_the_argument_before_the_environment(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_DATA", "/elsewhere")
    assert data_folder(tmp_path) == tmp_path
    assert data_folder(None) == Path("/elsewhere")
    monkeypatch.delenv("FORETHOUGHT_DATA")
    assert data_folder(None) is None
    with pytest.raises(DataError, match="no folder"):
        data_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="FORETHOUGHT_DATA"):
        load("mnist")


def test_files_are_found_in_the_sets_own_folder_and_beside(tmp_path: Path):
    (tmp_path / "b").write_text("beside")
    assert find("set", ["a", "b"], tmp_path) == tmp_path / "b"
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "b").write_text("inside")
    assert find("set", ["a", "b"], tmp_path) == tmp_path / "set" / "b"
    with pytest.raises(DataError, match=r"set: no x.*set or .*downloads nothing"):
        find("set", ["x", "y"], tmp_path)


def test_paths_are_looked_up_in_the_folder_then_here(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("there")
    assert resolve("t.csv", tmp_path / "data").read_text() == "there"
    (tmp_path / "t.csv").write_text("here")
    assert resolve("t.csv", tmp_path / "data").read_text() == "there"
    (tmp_path / "data" / "t.csv").unlink()
    assert resolve("t.csv", tmp_path / "data").read_text() == "here"
    # A variable of the environment comes behind the working directory, and a folder before it.
    (tmp_path / "data" / "t.csv").write_text("there")
    monkeypatch.setenv("FORETHOUGHT_DATA", str(tmp_path / "data"))
    assert resolve("t.csv", None).read_text() == "here"
    assert resolve("t.csv", tmp_path / "data").read_text() == "there"
    (tmp_path / "t.csv").unlink()
    assert resolve("t.csv", None).read_text() == "there"
    monkeypatch.delenv("FORETHOUGHT_DATA")
    with pytest.raises(DataError, match=r"no file .*u\.csv or u\.csv"):
        resolve("u.csv", tmp_path / "data")
    with pytest.raises(DataError, match="is a folder"):
        resolve("data", None)
    with pytest.raises(DataError, match="behind the colon"):
        load("csv:", label="y")


@pytest.mark.slow
@given(st.from_regex(r"(\s|0|1|\.|-| 00:00:00|2020-01-02|true|FALSE|a|\x1f){,6}", fullmatch=True))
def test_one_word_is_spelled_as_a_column_of_it(text: str) -> None:
    assert spelled(text) == written(pl.Series([text]))[0]
    assert word(text) == text


@pytest.mark.parametrize("entry", [1.0, -0.0, 0.1, 1e-7, 1e300, True, 3, None])
def test_an_entry_is_written_as_a_column_of_it(entry: float | bool | None) -> None:
    assert word(entry) == (written(pl.Series([entry]))[0] or "")

"""Files of earlier versions are read by today's code, and today's code writes the same form."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

sys.path.insert(0, str(Path(__file__).parent))

import golden
from golden import (
    ANSWERS,
    EXACT,
    FRAMES,
    GOLDEN,
    NEXT_ENVELOPE,
    NEXT_FEDERATION,
    NEXT_FRAMES,
    NEXT_STATEMENT,
    RUN,
    RUN_ID,
    STATEMENT,
)

import forethought as ft
from forethought.exchange.messages import HEADER_BYTES, KINDS, SERVER, length_of
from forethought.exchange.storage import ClientLedger, ServerJournal
from forethought.federated.federation import Federation
from forethought.gossip.gossip import Gossip
from forethought.jobs.account import verified
from forethought.values.plan import Transcript
from trials.storage import MemoryStorage

SUBJECT_PUBLIC_KEY_INFO = PublicFormat.SubjectPublicKeyInfo
AGAIN = (
    "the form of a stored file has changed: before the release run tests/formats/golden.py, "
    "after it read both forms"
)


def stored(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def same(one: Any, other: Any) -> bool:
    """Whether two messages are alike; vectors do not compare as values do."""
    return type(one) is type(other) and all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(one)
    )


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("mechanism.json", ft.Mechanism.from_dict, golden.mechanism),
        ("plan.json", ft.Plan.from_dict, golden.plan),
        ("plan-of-updates.json", ft.Plan.from_dict, golden.plan_of_updates),
        ("federation.json", Federation.from_dict, golden.federation),
        (NEXT_FEDERATION, Federation.from_dict, golden.changing_federation),
        ("gossip.json", Gossip.from_dict, golden.gossip),
    ],
)
def test_values_are_read_as_they_were_meant(name: str, read: Any, expected: Any) -> None:
    assert read(stored(name)) == expected()


def test_a_transcript_is_read_as_it_was_meant() -> None:
    found, expected = Transcript.from_values(stored("transcript.json")), golden.transcript()
    assert found.releases() == expected.releases()
    assert found.mechanism("zero-out") == expected.mechanism("zero-out")
    assert len(found) == 3


@pytest.mark.parametrize("name", list(EXACT))
def test_todays_code_writes_the_same_bytes(name: str) -> None:
    assert EXACT[name]() == (GOLDEN / name).read_bytes(), AGAIN


@pytest.mark.parametrize("name", [FRAMES, NEXT_FRAMES])
def test_signed_frames_are_read(name: str) -> None:
    data, found = (GOLDEN / name).read_bytes(), []
    while data:
        length = length_of(data[:HEADER_BYTES], dict.fromkeys(KINDS, 1 << 20))
        found.append(golden.endpoint().reopen(data[:length], SERVER))
        data = data[length:]
    expected = golden.messages(later=name == NEXT_FRAMES)
    assert len(found) == len(expected) and all(map(same, found, expected))
    with pytest.raises(ValueError, match=r"signature|sender"):
        changed = bytearray((GOLDEN / name).read_bytes())
        length = length_of(changed[:HEADER_BYTES], dict.fromkeys(KINDS, 1 << 20))
        changed[HEADER_BYTES - 1] ^= 1
        golden.endpoint().reopen(bytes(changed[:length]), SERVER)


def test_a_ledger_goes_on() -> None:
    storage = MemoryStorage({"ledger": (GOLDEN / "ledger.bin").read_bytes()})
    ledger = ClientLedger(storage, golden.endpoint(), "data")
    state = ledger.read()
    assert (state.updates, state.rounds, state.acknowledged, state.base) == (3, 6, 1, 7)
    assert state.state == b"state 2"
    expected = [golden.release(round).update for round in (1, 2)]
    assert all(map(same, state.outgoing, expected)) and len(state.outgoing) == 2
    ledger.commit(golden.release(2))  # the same again
    ledger.commit(golden.release(3))
    assert ledger.read().updates == 4


def test_a_journal_goes_on() -> None:
    storage = MemoryStorage({"journal": (GOLDEN / "journal.bin").read_bytes()})
    snapshot, found = ServerJournal(storage, RUN_ID).read()
    assert snapshot is not None and dict(snapshot.values) == dict(golden.SNAPSHOT.values)
    for name, array in golden.SNAPSHOT.arrays.items():
        np.testing.assert_array_equal(snapshot.arrays[name], array)
    expected = golden.entries()
    assert len(found) == len(expected) and all(map(same, found, expected))


FROZEN_STATEMENTS = (STATEMENT, "statement-3.json")


@pytest.mark.parametrize("name", [*FROZEN_STATEMENTS, NEXT_STATEMENT])
def test_a_statement_is_read_and_holds(name: str) -> None:
    text = (GOLDEN / name).read_text(encoding="utf-8")
    found = ft.Statement.from_json(text)
    assert found.to_json() + "\n" == text
    ft.accounting.verify(found, golden.plain_plan(5))
    expected = golden.statement()
    assert found.mechanism == expected.mechanism and found.about == expected.about
    if name in FROZEN_STATEMENTS:
        public = golden.key(9).public_key().public_bytes_raw().hex()
        assert found.signature is not None and found.signature.public_key == public
        expected = replace(expected, schema=found.schema, signature=found.signature, evidence=None)
    assert alike(json.loads(text), json.loads(expected.to_json())) == [], AGAIN


@pytest.mark.parametrize("name", [*FROZEN_STATEMENTS, NEXT_STATEMENT])
def test_a_signature_of_every_schema_holds(name: str, tmp_path: Path) -> None:
    for file in (name, NEXT_ENVELOPE):
        shutil.copyfile(GOLDEN / file, tmp_path / file)
    for number in (9, 8):
        raw = golden.key(number).public_key().public_bytes(Encoding.PEM, SUBJECT_PUBLIC_KEY_INFO)
        (tmp_path / f"{number}.pub").write_bytes(raw)
    assert "signature" in verified(tmp_path / name, tmp_path / "9.pub").checked
    with pytest.raises(ft.errors.StatementError, match="another key"):
        verified(tmp_path / name, tmp_path / "8.pub")
    values = stored(name)
    (tmp_path / name).write_text(json.dumps(values))  # the same values in another text
    if name in FROZEN_STATEMENTS:
        assert verified(tmp_path / name, tmp_path / "9.pub").checked
        return
    with pytest.raises(ft.errors.StatementError, match="signs another folder"):
        verified(tmp_path / name, tmp_path / "9.pub")


# What follows from the version and its source code.
_OWN = ("version", "checksum", "code")


def alike(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two JSON values differ in more than the last digits of numbers; [] is nowhere."""
    name = where.rpartition(".")[2]
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return [f"{where}: {sorted(one.keys() ^ other.keys())}"]
        return [bad for key in one for bad in alike(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [bad for pair in zip(one, other, strict=True) for bad in alike(*pair, where)]
    if isinstance(one, float) and isinstance(other, float):
        return [] if np.isclose(one, other, rtol=1e-3, atol=1e-6) else [f"{where}: {one} {other}"]
    if isinstance(one, str) and isinstance(other, str) and name in _OWN:
        return []
    return [] if one == other else [f"{where}: {one!r} {other!r}"]


def test_a_run_folder_is_read_and_applied() -> None:
    """Model, encoding, preparation and statement: new records get the answers of the day."""
    folder = GOLDEN / RUN
    said = stored(ANSWERS)
    predictor = ft.load(folder)
    assert predictor.predict(golden.RECORDS).tolist() == said["predictions"]
    shares = predictor.predict_proba(golden.RECORDS)
    np.testing.assert_allclose(shares, said["probabilities"], atol=1e-6)
    entries = verified(folder)
    assert entries.statement.mechanism == ft.Plan.load(folder / "plan.json").mechanism
    transcript = stored(f"{RUN}/transcript.json")
    transcript.pop("schema")
    released = Transcript.from_values(transcript)
    assert released.mechanism("add-or-remove") == entries.statement.mechanism


def test_todays_run_folder_has_the_same_form(tmp_path: Path) -> None:
    golden.write_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in (GOLDEN / RUN).iterdir()
    }, AGAIN
    for path in sorted((GOLDEN / RUN).glob("*.json")):
        now = json.loads((tmp_path / path.name).read_text(encoding="utf-8"))
        frozen = form(stored(f"{RUN}/{path.name}"))
        if path.name == "model.json":
            counts = {"numbers": ["int"], "hats": "int", "waves": "int", "seed": "int"}
            frozen["encoder"] |= {"basis": {**counts, "width": "float", "ranges": []}}
        if path.name == "prepared.json":  # of three features and eight hats
            frozen["constants"] |= {"shift": ["float"] * 11, "scale": ["float"] * 11}
        if path.name == "results.json":  # every figure has an interval since
            for figure in frozen["figures"].values():
                figure |= {"low": "float", "high": "float"}
        if path.name == STATEMENT:
            frozen |= {"attained": {"epsilon": "float", "data": "str"}}
            beside = ("plan", "transcript", "job", "model", "prepared")
            names = [f"{one}.toml" if one == "job" else f"{one}.json" for one in beside]
            frozen |= {"evidence": {"code": "str", "files": dict.fromkeys(names, "str")}}
        assert frozen == form(now), f"{path.name}: {AGAIN}"
    for path in sorted((GOLDEN / RUN).glob("*.csv")):
        first = (tmp_path / path.name).read_text(encoding="utf-8").partition("\n")[0]
        assert path.read_text(encoding="utf-8").partition("\n")[0] == first, AGAIN


def form(value: Any) -> Any:
    """Keys and types, without values."""
    if isinstance(value, dict):
        return {key: form(each) for key, each in value.items()}
    if isinstance(value, list):
        return [form(each) for each in value]
    return type(value).__name__

"""Signatures: they hold for one content and one key; a forged, moved or borrowed one does not."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner

import forethought as ft
from forethought.auditing.verdict import SCHEMA as AUDIT_SCHEMA
from forethought.cli import app
from forethought.jobs.account import verified
from forethought.values.signing import (
    Signature,
    SignatureError,
    attest,
    attested,
    encoded,
    generate,
)

ENVELOPE = "statement.intoto.json"
MECHANISM = ft.Mechanism(ft.Rounds(1.1, 20, ft.Poisson(0.01)))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "signing.pem"
    generate(path)
    return path


def public(key: Path) -> Path:
    return key.with_name("signing.pem.pub")


@pytest.fixture
def signed(key: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    plan = ft.Plan(MECHANISM, 1000, 1e-5)
    ft.account(plan).save(folder, {"plan.json": plan.to_json()})
    assert run("account", folder, "--sign", key) == (0, "")
    return folder


def run(*arguments: object) -> tuple[int, str]:
    """Exit status and error of a command."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, "" if result.exception is None else str(result.exception)


def test_keys_are_the_owners_and_never_overwritten(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert b"BEGIN PUBLIC KEY" in public(key).read_bytes()
    before = key.read_bytes()
    with pytest.raises(FileExistsError, match="never overwritten"):
        generate(key)
    assert key.read_bytes() == before


def test_the_signed_bytes_are_those_of_the_specification() -> None:
    # The example of DSSE 1.0's protocol.md.
    said = encoded("http://example.com/HelloWorld", b"hello world")
    assert said == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_the_page_of_a_folder_says_who_signed_it(signed: Path, key: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    generate(other)
    page, elsewhere = signed / "statement.html", tmp_path / "elsewhere.html"
    for signer in (key, other):
        page.write_text("drawn before", encoding="utf-8")
        assert run("account", signed, "--sign", signer) == (0, "")
        name = attested((signed / ENVELOPE).read_text(encoding="utf-8")).fingerprint
        assert name in page.read_text(encoding="utf-8")
    # Where no page was drawn there is none, and none is drawn through a link.
    page.unlink()
    assert run("account", signed, "--sign", key) == (0, "")
    assert not page.exists()
    elsewhere.write_text("mine", encoding="utf-8")
    page.symlink_to(elsewhere)
    assert run("account", signed, "--sign", key) == (0, "")
    assert elsewhere.read_text(encoding="utf-8") == "mine"


def test_what_people_read_is_signed(signed: Path, key: Path) -> None:
    for name in ("statement.html", "report.html", "results.json"):
        (signed / name).write_text("{}", encoding="utf-8")
    assert run("account", signed, "--sign", key) == (0, "")
    assert "signature" in verified(signed, public(key)).checked
    for name in ("statement.html", "report.html", "results.json"):
        kept = (signed / name).read_bytes()
        (signed / name).write_bytes(kept + b" ")
        with pytest.raises(ValueError, match="what was signed"):
            verified(signed, public(key))
        (signed / name).unlink()  # it may be kept back
        verified(signed, public(key))
        (signed / name).write_bytes(kept)
    # Whoever draws the pages anew signs anew.
    (signed / "report.html").write_text("<p>more</p>", encoding="utf-8")
    assert run("account", signed, "--sign", key) == (0, "")
    verified(signed, public(key))


def test_an_audit_and_a_report_leave_a_signed_page_as_it_is(signed: Path, key: Path) -> None:
    page = signed / "statement.html"
    page.write_text("drawn before", encoding="utf-8")
    assert run("account", signed, "--sign", key) == (0, "")
    before = page.read_bytes()
    plan = json.loads((signed / "statement.json").read_text())["plan"]
    audit = {"schema": AUDIT_SCHEMA, "plan": plan, "refuted": False}
    (signed / "audit.json").write_text(json.dumps(audit))
    assert run("report", signed) == (0, "")
    assert page.read_bytes() == before
    verified(signed, public(key))
    # Signing again draws the page with what the audit said.
    assert run("account", signed, "--sign", key) == (0, "")
    assert page.read_bytes() != before
    verified(signed, public(key))
    # A page that was put in its place is neither shown nor printed as signed.
    page.write_text("forged", encoding="utf-8")
    with pytest.raises(ValueError, match="what was signed"):
        verified(signed, public(key))
    status, error = run("report", signed, "--pdf")
    assert status and "what was signed" in error


def test_the_envelope_is_an_in_toto_attestation(signed: Path, key: Path) -> None:
    """With the library of another party: nothing of ours but the form that was written down."""
    envelope = json.loads((signed / ENVELOPE).read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(envelope["payload"])
    [signature] = envelope["signatures"]
    other = serialization.load_pem_public_key(public(key).read_bytes())
    assert isinstance(other, Ed25519PublicKey)
    head = f"DSSEv1 28 application/vnd.in-toto+json {len(payload)} ".encode()
    other.verify(base64.b64decode(signature["sig"]), head + payload)
    said = json.loads(payload)
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "urn:forethought:privacy-statement:v1"
    for subject in said["subject"]:
        content = (signed / subject["name"]).read_bytes()
        assert subject["digest"] == {"sha256": hashlib.sha256(content).hexdigest()}
    assert [one["name"] for one in said["subject"]] == [
        *("statement.json", "plan.json", "statement.md"),
    ]
    assert said["predicate"] == json.loads((signed / "statement.json").read_text())


def test_a_signed_statement_verifies_with_its_key_only(
    signed: Path, key: Path, tmp_path: Path
) -> None:
    path = signed / "statement.json"
    assert run("account", "--verify", path, "--public-key", public(key)) == (0, "")
    assert run("account", "--verify", path) == (0, "")
    generate(tmp_path / "other.pem")
    status, said = run("account", "--verify", path, "--public-key", tmp_path / "other.pem.pub")
    assert status and "another key" in said
    assert "signature" in verified(signed, public(key)).checked


def test_what_is_checked_and_what_is_not_is_listed(signed: Path) -> None:
    words = CliRunner().invoke(app, ["account", "--verify", str(signed / "statement.json")]).output
    rows = [[part.strip() for part in line.split("│")] for line in words.splitlines()]
    cells = {row[1]: row[2:5] for row in rows if len(row) > 4 and row[1]}
    claimed, recomputed, evidence = cells["epsilon"]
    assert claimed == recomputed and claimed.startswith("at most") and "mechanism" in evidence
    assert cells["version"][1] == ft.__version__ and "source code" in cells["version"][2]
    assert cells["randomness"][1] == "" and cells["randomness"][2].startswith("not checked")
    result = CliRunner().invoke(app, ["account", "--json", "--verify", str(signed)])
    found = json.loads(result.output)
    assert "attack" in found["checked"]
    assert "none are listed" in found["not_checked"]["releases"]


def envelope_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / ENVELOPE).read_text())
    return found


def payload_with(folder: Path, **changes: Any) -> str:
    said = json.loads(base64.b64decode(envelope_of(folder)["payload"]))
    return base64.b64encode(json.dumps({**said, **changes}).encode()).decode()


def other_key(folder: Path) -> dict[str, Any]:
    """The envelope as somebody else would sign it."""
    generate(folder.parent / "other.pem")
    kept = (folder / ENVELOPE).read_bytes()
    run("account", folder, "--sign", folder.parent / "other.pem")
    made = envelope_of(folder)
    (folder / ENVELOPE).write_bytes(kept)
    return made


ENVELOPES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "the key's name swapped": lambda f: {
        "signatures": [
            {**envelope_of(f)["signatures"][0], "keyid": other_key(f)["signatures"][0]["keyid"]}
        ]
    },
    "another payload": lambda f: {"payload": payload_with(f, subject=[])},
    "another type": lambda f: {"payloadType": "application/json"},
    "a number as signature": lambda f: {"signatures": [5]},
    "no signature": lambda f: {"signatures": []},
    "no base64": lambda f: {"payload": "*"},
    "a flipped bit": lambda f: {
        "signatures": [{**envelope_of(f)["signatures"][0], "sig": "A" * 86 + "=="}]
    },
}


@pytest.mark.parametrize("change", ENVELOPES)
def test_a_forged_envelope_is_refused(signed: Path, key: Path, change: str) -> None:
    made = {**envelope_of(signed), **ENVELOPES[change](signed)}
    (signed / ENVELOPE).write_text(json.dumps(made))
    with pytest.raises(ft.errors.StatementError):
        verified(signed)
    if change != "the key's name swapped":  # which says nothing where the key is given
        with pytest.raises(ft.errors.StatementError):
            verified(signed, public(key))


def test_an_envelope_whose_type_is_no_text_is_refused(signed: Path, key: Path) -> None:
    made = json.dumps({**envelope_of(signed), "payloadType": 5})
    for owner in (None, public(key)):
        with pytest.raises(SignatureError, match="must hold"):
            attested(made, owner)


def test_another_key_signs_for_itself_only(signed: Path, key: Path) -> None:
    (signed / ENVELOPE).write_text(json.dumps(other_key(signed)))
    assert "whose key" in dict(verified(signed).not_checked)["signature"]
    with pytest.raises(ft.errors.StatementError, match="another key"):
        verified(signed, public(key))


def test_a_signature_stays_with_its_folder(signed: Path, key: Path, tmp_path: Path) -> None:
    other = tmp_path / "copy"
    shutil.copytree(signed, other)
    assert "signature" in verified(other, public(key)).checked
    plan = ft.Plan(MECHANISM, 1000, 1e-5, hyperparameters="copied")
    for name, text in {
        "plan.json": plan.to_json(),
        "statement.json": json.dumps(json.loads((signed / "statement.json").read_text())),
    }.items():
        kept = (other / name).read_bytes()
        for now in (text.encode(), kept.replace(b" ", b"", 1)):
            (other / name).write_bytes(now)
            with pytest.raises(ft.errors.StatementError):
                verified(other)
        (other / name).write_bytes(kept)
    (other / "plan.json").unlink()
    for path in (other, other / "statement.json"):
        with pytest.raises(ft.errors.StatementError):
            verified(path, public(key))
    # The statement of another folder under this envelope.
    ft.account(plan).save(other, {"plan.json": plan.to_json()})
    assert verified(signed)
    with pytest.raises(ft.errors.StatementError, match="signs another folder"):
        verified(other, public(key))


def test_both_forms_of_base64_are_read_and_unknown_fields_left_alone(
    signed: Path, key: Path
) -> None:
    values = envelope_of(signed)
    values["payload"] = values["payload"].replace("+", "-").replace("/", "_")
    values["signatures"].insert(0, {"sig": base64.b64encode(bytes(64)).decode()})
    (signed / ENVELOPE).write_text(json.dumps({**values, "more": 1}))
    assert "signature" in verified(signed, public(key)).checked
    values["signatures"] = [{"sig": values["signatures"][1]["sig"]}]
    (signed / ENVELOPE).write_text(json.dumps(values))
    assert "names no key" in dict(verified(signed).not_checked)["signature"]
    assert "signature" in verified(signed, public(key)).checked


def test_what_does_not_hold_is_not_signed(key: Path, tmp_path: Path) -> None:
    statement = ft.account(MECHANISM, 1e-5)
    half = ft.Interval(statement.epsilon.lower / 2, statement.epsilon.upper / 2)
    replace(statement, epsilon=half).save(tmp_path)
    status, said = run("account", tmp_path, "--sign", key)
    assert status and "does not hold" in said
    assert not (tmp_path / ENVELOPE).exists()


def test_an_unsigned_statement_does_not_pass_for_a_signed_one(key: Path, tmp_path: Path) -> None:
    ft.account(MECHANISM, 1e-5).save(tmp_path)
    status, said = run("account", "--verify", tmp_path, "--public-key", public(key))
    assert status and "is not signed" in said


def test_what_is_no_key_is_refused_by_name(key: Path, tmp_path: Path) -> None:
    other = tmp_path / "x25519.pem"
    other.write_bytes(
        X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(SignatureError, match=r"x25519\.pem holds no"):
        attest({}, {}, other)
    other.write_text("nothing")
    with pytest.raises(SignatureError, match="no private key"):
        attest({}, {}, other)
    with pytest.raises(SignatureError, match="no public key"):
        attested(attest({}, {}, key), other)
    with pytest.raises(SignatureError, match="32 bytes"):
        Signature("00", "00" * 64)
    with pytest.raises(SignatureError, match="must be Ed25519"):
        Signature("00" * 32, "00" * 64, "RSA")


def test_keygen_makes_a_pair(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["keygen", str(tmp_path / "me.pem")])
    assert result.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"me.pem", "me.pem.pub"}
    status, said = run("account", "--examples", 10, "--sign", tmp_path / "me.pem")
    assert status and "need the path" in said

"""Signatures: they hold for one content and one key; a forged, moved or borrowed one does not."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner

import forethought as ft
from forethought.accounting.verification import check
from forethought.cli import app
from forethought.serialisation import canonical, digest
from forethought.signing import Signature, SignatureError, generate, sign
from forethought.signing import check as check_signature

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
    ft.account(MECHANISM, 1e-5).save(tmp_path)
    assert run("account", tmp_path, "--sign", key) == (0, "")
    return tmp_path


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


def test_the_signature_is_plain_ed25519_over_the_canonical_text(key: Path) -> None:
    """With the library of another party: nothing of ours but the text that was signed."""
    content = {"b": [1, 2.5, "ε"], "a": None}
    signature = sign(content, key)
    other = serialization.load_pem_public_key(public(key).read_bytes())
    assert isinstance(other, Ed25519PublicKey)
    text = '{"a":null,"b":[1,2.5,"\\u03b5"]}'
    assert canonical(content) == text
    other.verify(
        bytes.fromhex(signature.value), b"forethought signed statement 1\n" + text.encode()
    )
    check_signature(signature, content, public(key))


def test_a_signed_statement_verifies_with_its_key_only(
    signed: Path, key: Path, tmp_path: Path
) -> None:
    path = signed / "statement.json"
    assert run("account", "--verify", path, "--public-key", public(key)) == (0, "")
    assert run("account", "--verify", path) == (0, "")
    assert "Signed with the Ed25519 key" in (signed / "statement.md").read_text()
    generate(tmp_path / "other.pem")
    status, said = run("account", "--verify", path, "--public-key", tmp_path / "other.pem.pub")
    assert status and "another key" in said


def test_what_is_checked_and_what_is_not_is_listed(signed: Path) -> None:
    words = CliRunner().invoke(app, ["account", "--verify", str(signed / "statement.json")]).output
    rows = [[part.strip() for part in line.split("│")] for line in words.splitlines()]
    cells = {row[1]: row[2:5] for row in rows if len(row) > 4 and row[1]}
    claimed, recomputed, evidence = cells["epsilon"]
    assert claimed == recomputed and claimed.startswith("at most") and "mechanism" in evidence
    assert cells["version"][1] == "" and cells["version"][2].startswith("not checked")
    result = CliRunner().invoke(app, ["account", "--json", "--verify", str(signed)])
    found = json.loads(result.output)
    assert "attack" in found["checked"]
    assert "no plan.json" in found["not_checked"]["plan"]


def test_an_edit_breaks_the_signature(signed: Path, key: Path) -> None:
    path = signed / "statement.json"
    values = json.loads(path.read_text())
    signature = values.pop("signature")
    del values["checksum"]
    values["examples"] = 60_000
    forged = {**values, "checksum": digest(values), "signature": signature}
    path.write_text(json.dumps(forged))
    for more in ((), ("--public-key", public(key))):
        status, said = run("account", "--verify", path, *more)
        assert status and "changed after it was signed" in said


def test_a_signature_of_something_else_is_no_signature(signed: Path, key: Path) -> None:
    statement = ft.Statement.load(signed / "statement.json")
    assert statement.signature is not None
    moved = replace(ft.account(MECHANISM, 1e-6), signature=statement.signature)
    with pytest.raises(ft.errors.StatementError, match="changed after it"):
        check(moved)
    flipped = ("0" if statement.signature.value[0] != "0" else "1") + statement.signature.value[1:]
    with pytest.raises(SignatureError, match="does not fit"):
        check_signature(replace(statement.signature, value=flipped), statement.content())


def test_what_does_not_hold_is_not_signed(key: Path, tmp_path: Path) -> None:
    statement = ft.account(MECHANISM, 1e-5)
    half = ft.Interval(statement.epsilon.lower / 2, statement.epsilon.upper / 2)
    replace(statement, epsilon=half).save(tmp_path)
    status, said = run("account", tmp_path, "--sign", key)
    assert status and "does not hold" in said
    assert ft.Statement.load(tmp_path / "statement.json").signature is None


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
        sign({}, other)
    other.write_text("nothing")
    with pytest.raises(SignatureError, match="no private key"):
        sign({}, other)
    with pytest.raises(SignatureError, match="no public key"):
        check_signature(sign({}, key), {}, other)
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

"""Rosters, keys and certificates: everybody is somebody else, and nobody vouches for anyone."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from forethought.exchange.keys import (
    CONNECTION,
    IDENTITY,
    SIGNING,
    Identity,
    Keys,
    Roster,
    RosterError,
)
from forethought.exchange.messages import SERVER


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("keys")
    for name in ("server", "a", "b"):
        Keys.make(root / name, name)
    return root


@pytest.fixture(scope="module")
def roster(folders: Path) -> Roster:
    server, *clients = (Keys.load(folders / name).identity for name in ("server", "a", "b"))
    return Roster.of(server, clients)


def test_keys_are_their_owners_only_and_never_overwritten(folders: Path) -> None:
    for name in (SIGNING, CONNECTION):
        assert (folders / "a" / name).stat().st_mode & 0o077 == 0
    text = (folders / "a" / IDENTITY).read_text()
    assert "PRIVATE" not in text
    with pytest.raises(FileExistsError, match="use a new"):
        Keys.make(folders / "a", "a")


def test_a_certificate_can_sign_nothing(folders: Path) -> None:
    server = x509.load_pem_x509_certificate(
        Keys.load(folders / "server").identity.certificate.encode()
    )
    constraints = server.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and not constraints.value.ca
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server"]


def test_a_roster_survives_its_file_and_has_a_name_of_its_own(
    roster: Roster, folders: Path, tmp_path: Path
) -> None:
    roster.save(tmp_path / "roster.json")
    assert Roster.load(tmp_path / "roster.json") == roster
    keys = {name: Keys.load(folders / name) for name in ("server", "a", "b")}
    assert [roster.place(own) for own in keys.values()] == [SERVER, 0, 1]
    again = Roster.of(roster.server, roster.clients)
    assert again.fingerprint != roster.fingerprint  # another run, even with the same keys
    with pytest.raises(RosterError, match="made anew"):
        roster.place(Keys.make(tmp_path / "b", "b"))


def test_nobody_is_in_it_twice(roster: Roster, folders: Path) -> None:
    a, b = roster.clients
    for clients in (
        (a, a),
        (a, Identity("other", a.public_key, b.certificate)),
        (a, Identity("other", b.public_key, a.certificate)),
        (a, Identity("server", b.public_key, b.certificate)),
    ):
        with pytest.raises(RosterError, match="two members have"):
            Roster.of(roster.server, clients)
    with pytest.raises(RosterError, match="least one client"):
        Roster.of(roster.server, ())


def test_a_damaged_folder_of_keys_is_noticed(folders: Path, tmp_path: Path) -> None:
    for name in (SIGNING, CONNECTION, IDENTITY):
        mixed = tmp_path / name
        mixed.mkdir()
        for each in (SIGNING, CONNECTION, IDENTITY):
            source = folders / ("b" if each == name else "a") / each
            (mixed / each).write_bytes(source.read_bytes())
        with pytest.raises(RosterError, match="those of its"):
            Keys.load(mixed)
    (mixed / SIGNING).write_text("nothing")
    with pytest.raises(RosterError, match="holds no keys"):
        Keys.load(mixed)


@pytest.mark.parametrize("name", ["", "A", "../a", "a" * 64, "ä", "-a"])
def test_names(name: str, roster: Roster) -> None:
    with pytest.raises(RosterError, match="no member's name"):
        Identity(name, roster.server.public_key, "")


@pytest.mark.parametrize(
    "weak",
    [
        "00" * 32,
        "01" + "00" * 31,
        "01" + "00" * 30 + "80",
        "ec" + "ff" * 30 + "7f",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "00" * 31,
        "xyz",
    ],
)
def test_keys_under_which_anybody_could_sign_are_refused(weak: str) -> None:
    with pytest.raises(RosterError, match="key of a"):
        Identity("a", weak, "")


def test_a_certificate_that_is_cut_or_of_another_kind_is_refused(roster: Roster) -> None:
    """Below TLS 1.3 there is a cipher for RSA, so that no certificate may be of it."""
    one = roster.server
    with pytest.raises(RosterError, match="certificate of server"):
        Identity(one.name, one.public_key, one.certificate[:200])
    key = rsa.generate_private_key(65537, 2048)
    certificate = x509.load_pem_x509_certificate(one.certificate.encode())
    made = (
        x509.CertificateBuilder(certificate.issuer, certificate.subject, key.public_key())
        .serial_number(1)
        .not_valid_before(certificate.not_valid_before_utc)
        .not_valid_after(certificate.not_valid_after_utc)
        .sign(key, hashes.SHA256())
    )
    with pytest.raises(RosterError, match="certificate of server"):
        Identity(one.name, one.public_key, made.public_bytes(Encoding.PEM).decode())


def test_such_a_key_really_is_weak() -> None:
    """Why they are refused: under the point of order one, R = 0·B and S = 0 fit every message."""
    one = bytes.fromhex("01" + "00" * 31)
    Ed25519PublicKey.from_public_bytes(one).verify(one + bytes(32), b"any message")

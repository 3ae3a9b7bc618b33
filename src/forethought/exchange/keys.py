"""A member's own keys: one for signing frames, one for its connections, and its certificate.

The private keys are made where they are used and never leave that folder. The certificate is
self-signed (ECDSA on P-256: what TLS libraries agree on), for the member's name rather than for a
host, may sign nothing else, and is trusted because the roster names it.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from forethought.exchange.roster import Identity, RosterError

SIGNING, CONNECTION, IDENTITY = "signing.pem", "connection.pem", "identity.json"
DAYS = 3650
# Clocks differ: a certificate is valid from a day before it was made.
_EARLIER = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Keys:
    """A member's private keys, and what it shows to the others.

    Args:
        identity: public. signing: Ed25519. connection: the TLS key, PEM.
    """

    identity: Identity
    signing: Ed25519PrivateKey
    connection: bytes

    @classmethod
    def make(cls, folder: Path, name: str) -> Keys:
        """New keys in a folder, readable by its owner only.

        Raises:
            FileExistsError: there are keys; they are never overwritten. RosterError: the name.
        """
        signing = Ed25519PrivateKey.generate()
        connection = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(connection, name).public_bytes(form.Encoding.PEM)
        identity = Identity(
            name, signing.public_key().public_bytes_raw().hex(), certificate.decode()
        )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (folder / SIGNING, folder / CONNECTION, folder / IDENTITY):
            if path.exists():
                raise FileExistsError(f"{path} exists; keys are never overwritten")
        own = cls(identity, signing, _pem(connection))
        _write_secret(folder / SIGNING, _pem(signing))
        _write_secret(folder / CONNECTION, own.connection)
        identity.save(folder / IDENTITY)
        return own

    @classmethod
    def load(cls, folder: Path) -> Keys:
        """The keys in a folder.

        Raises:
            OSError: none there. RosterError: they are damaged, or do not belong together.
        """
        identity = Identity.load(folder / IDENTITY)
        connection = (folder / CONNECTION).read_bytes()
        try:
            signing = load_pem_private_key((folder / SIGNING).read_bytes(), password=None)
            own = load_pem_private_key(connection, password=None)
            certificate = x509.load_pem_x509_certificate(identity.certificate.encode())
        except (ValueError, TypeError) as error:
            raise RosterError(f"{folder} holds no keys of a member: {error}") from None
        if (
            not isinstance(signing, Ed25519PrivateKey)
            or signing.public_key().public_bytes_raw().hex() != identity.public_key
            or own.public_key() != certificate.public_key()
        ):
            raise RosterError(
                f"the keys in {folder} are not those of its {IDENTITY}: make new ones in an empty "
                "folder, and a new roster"
            )
        return cls(identity, signing, connection)


def _certificate(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        # It may sign nothing: a member must not be able to vouch for a name that is not its own.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _write_secret(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)

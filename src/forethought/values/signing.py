"""Ed25519 signatures (RFC 8032) of a statement and of the files in its folder.

A statement is signed as an in-toto attestation: a DSSE envelope (Dead Simple Signing Envelope,
version 1) whose payload is an in-toto Statement, version 1. Its subjects are the files of the
folder with their SHA-256, its predicate is the privacy statement. A signature shows that the holder
of a key signed exactly these files. It proves nothing about the run, and it does not show who holds
the key: the reader must know that from another source.

Statements of earlier schemas contain a signature over canonical JSON; see :func:`check`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.values.serialisation import canonical, parse, write_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

ALGORITHM = "Ed25519"
# Prefix of the signed bytes in earlier schemas, so that a signature of other data never fits.
_CONTEXT = b"forethought signed statement 1\n"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:forethought:privacy-statement:v1"
_HEX = re.compile(r"[0-9a-f]{64}")

_MOST_SIGNATURES, _MOST_SUBJECTS = 20, 40


class SignatureError(ValueError):
    """A key that cannot be read, or a signature that does not fit."""


@dataclass(frozen=True)
class Signature:
    """A signature inside a statement of an earlier schema.

    Args:
        public_key: 32 bytes in hexadecimal. value: 64 bytes in hexadecimal.
        algorithm: ``"Ed25519"``.
    """

    public_key: str
    value: str
    algorithm: str = ALGORITHM

    def __post_init__(self) -> None:
        if self.algorithm != ALGORITHM:
            raise SignatureError(f"the signature must be {ALGORITHM}, not {self.algorithm!r}")
        for name, size in (("public_key", 32), ("value", 64)):
            text = getattr(self, name)
            try:
                good = isinstance(text, str) and len(bytes.fromhex(text)) == size
            except ValueError:
                good = False
            if not good or text != text.lower() or len(text) != 2 * size:
                raise SignatureError(f"the signature's {name} must be {size} bytes in hexadecimal")

    @property
    def fingerprint(self) -> str:
        """Short name of the public key: 16 digits of its hash."""
        return _fingerprint(bytes.fromhex(self.public_key))


@dataclass(frozen=True)
class Attested:
    """The content of a signed envelope.

    Args:
        subjects: name → SHA-256 in hexadecimal of each file. predicate: the privacy statement.
        fingerprint: of the key whose signature fits; None: no key was given, and the envelope names
            none that can be tried.
    """

    subjects: Mapping[str, str]
    predicate: Any
    fingerprint: str | None


def attest(files: Mapping[str, str], predicate: Mapping[str, Any], key: Path) -> str:
    """The signed envelope of a folder, as JSON.

    Args:
        files: name → ``sha256:…`` of its contents. predicate: the privacy statement.
        key: PEM file of an Ed25519 private key; :func:`generate` makes one.

    Raises:
        OSError: no such file. SignatureError: the file holds no such key.
    """
    signer = Signer(key)
    subjects = [
        {"name": name, "digest": {"sha256": value.removeprefix("sha256:")}}
        for name, value in files.items()
    ]
    payload = canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    ).encode()
    signature = {"keyid": signer.public_key, "sig": signer.sign(PAYLOAD_TYPE, payload)}
    return canonical(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [signature],
        }
    )


def attested(envelope: str, key: Path | None = None) -> Attested:
    """The content of an envelope, after a check of its signature.

    Args:
        envelope: the envelope as JSON, from :func:`attest`.
        key: PEM file of the public key that must have signed; None: the key that the envelope
            names, which shows only that nothing was changed since.

    Raises:
        OSError: no such file. SignatureError, ValueError, TypeError, LookupError: no envelope of a
            privacy statement, or a signature that does not fit.
    """
    values = parse(envelope)
    payload, signatures = _bytes(values["payload"]), values["signatures"]
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= _MOST_SIGNATURES:
        raise SignatureError(f"an envelope has 1 to {_MOST_SIGNATURES} signatures")
    if not all(isinstance(one, Mapping) for one in signatures):
        raise SignatureError("a signature of an envelope is an object with keyid and sig")
    if values["payloadType"] != PAYLOAD_TYPE:
        raise SignatureError(f"the envelope must hold {PAYLOAD_TYPE}")
    signed = encoded(PAYLOAD_TYPE, payload)
    if key is not None:
        wanted = [_public_key(key).public_bytes_raw()]
        tried = [(wanted[0], one) for one in signatures]
    else:
        named = [(str(one.get("keyid", "")), one) for one in signatures]
        tried = [(bytes.fromhex(name), one) for name, one in named if _HEX.fullmatch(name)]
    fits = [raw for raw, one in tried if _fits(raw, _bytes(one["sig"]), signed)]
    if key is not None and not fits:
        raise SignatureError(
            f"no signature beside the statement fits the key of {key}: the statement was signed "
            "with another key, or was changed after it was signed"
        )
    if key is None and len(fits) < len(tried):
        raise SignatureError(
            "the signature does not fit: the statement was changed after it was signed"
        )
    content = parse(payload.decode())
    if (content["_type"], content["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise SignatureError("the envelope holds no privacy statement")
    subjects = {one["name"]: one["digest"]["sha256"] for one in content["subject"][:_MOST_SUBJECTS]}
    if len(subjects) != len(content["subject"]) or not all(
        isinstance(name, str) and isinstance(value, str) and _HEX.fullmatch(value)
        for name, value in subjects.items()
    ):
        raise SignatureError(f"the envelope must name up to {_MOST_SUBJECTS} files, each once")
    return Attested(subjects, content["predicate"], _fingerprint(fits[0]) if fits else None)


class Signer:
    """A private key, read once for many signatures.

    Args:
        path: PEM file of an Ed25519 private key; :func:`generate` makes one.

    Raises:
        OSError: no such file. SignatureError: the file holds no such key.
    """

    def __init__(self, path: Path) -> None:
        self._key = _private_key(path)
        #: The public key: 32 bytes in hexadecimal.
        self.public_key = self._key.public_key().public_bytes_raw().hex()

    def sign(self, kind: str, payload: bytes) -> str:
        """The signature of a payload of type ``kind``, in base64; see :func:`encoded`."""
        return base64.b64encode(self._key.sign(encoded(kind, payload))).decode()


def public_key_of(path: Path) -> str:
    """The public key, in hexadecimal, of a PEM file that holds it or its private key.

    Raises:
        OSError: no such file. SignatureError: no Ed25519 key in it.
    """
    if b"PRIVATE KEY" in path.read_bytes():
        return Signer(path).public_key
    return _public_key(path).public_bytes_raw().hex()


def signed_by(public_key: str, kind: str, payload: bytes, signature: str) -> bool:
    """True if a signature from :meth:`Signer.sign` fits this key, kind and payload."""
    try:
        return _fits(bytes.fromhex(public_key), _bytes(signature), encoded(kind, payload))
    except ValueError:
        return False


def encoded(kind: str, payload: bytes) -> bytes:
    """The bytes that DSSE signs: PAE(UTF8(payload type), payload)."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def check(signature: Signature, content: Mapping[str, Any], key: Path | None = None) -> None:
    """Refuse an earlier schema's signature that does not fit ``content`` and ``key``.

    Args:
        key: PEM file of the public key that must have signed; None: the key that the signature
            names, which shows only that the content was not changed since.

    Raises:
        OSError: no such file. SignatureError: the signature does not fit.
    """
    if key is not None and _public_key(key).public_bytes_raw().hex() != signature.public_key:
        raise SignatureError(
            f"the statement was signed with another key ({signature.fingerprint}) than that of "
            f"{key}"
        )
    signed = _CONTEXT + canonical(content).encode()
    if not _fits(bytes.fromhex(signature.public_key), bytes.fromhex(signature.value), signed):
        raise SignatureError(
            "the signature does not fit: the statement was changed after it was signed"
        )


def generate(path: Path) -> tuple[Path, str]:
    """Make a key pair in ``path`` (private, owner-only, PKCS 8) and ``path`` + ``.pub`` (public).

    Returns:
        The public key's file and its fingerprint.

    Raises:
        FileExistsError: one of the files exists; a key is never overwritten.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = private.public_key()
    public_file = path.with_name(f"{path.name}.pub")
    if public_file.exists():
        raise FileExistsError(f"{public_file} exists; a key is never overwritten")
    held = private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    try:
        write_secret(path, held)
    except FileExistsError:
        raise FileExistsError(f"{path} exists; a key is never overwritten") from None
    public_file.write_bytes(
        public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    )
    return public_file, _fingerprint(public.public_bytes_raw())


def _fits(public_key: bytes, value: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(value, signed)
    except InvalidSignature:
        return False
    return True


def _fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()[:16]


def _bytes(text: Any) -> bytes:
    """The bytes of a base64 text in the standard or the URL-safe alphabet; DSSE allows both."""
    if not isinstance(text, str):
        raise SignatureError("an envelope holds its payload and signatures in base64")
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error as error:
        raise SignatureError(f"the envelope is no base64: {error}") from None


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise SignatureError(
            f"{path} holds no private key without a passphrase in PEM form: {error}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(f"{path} holds no Ed25519 key: make one with forethought keygen FILE")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except ValueError as error:
        raise SignatureError(f"{path} holds no public key in PEM form: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SignatureError(f"{path} holds no Ed25519 key")
    return key

"""Ed25519 signatures (RFC 8032) over canonical JSON: who vouches for a statement.

A signature says that the holder of a key stood behind exactly this content. It proves nothing about
the run; whose key it is, the reader must know from elsewhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.serialisation import build, canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

ALGORITHM = "Ed25519"
# Written before what is signed, so that a signature of something else can never be passed off.
_CONTEXT = b"forethought signed statement 1\n"


class SignatureError(ValueError):
    """A key that cannot be read, or a signature that does not fit."""


@dataclass(frozen=True)
class Signature:
    """A signature beside what it signs.

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
        return hashlib.sha256(bytes.fromhex(self.public_key)).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Signature:
        """From a JSON object that has exactly the fields. Raises ValueError."""
        return build(cls, values, "signature")


def sign(content: Mapping[str, Any], key: Path) -> Signature:
    """Sign a JSON object.

    Args:
        content: what is signed, in its canonical text.
        key: PEM file of an Ed25519 private key; :func:`generate` makes one.

    Raises:
        OSError: no such file. SignatureError: no such key in it.
    """
    private = _private_key(key)
    return Signature(
        public_key=private.public_key().public_bytes_raw().hex(),
        value=private.sign(_signed(content)).hex(),
    )


def check(signature: Signature, content: Mapping[str, Any], key: Path | None = None) -> None:
    """Refuse a signature that is not of ``content``, or not by ``key``.

    Args:
        key: PEM file of the public key that must have signed; None: whichever key the signature
            names, which shows only that the content was not changed since.

    Raises:
        OSError: no such file. SignatureError: the signature does not fit.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if key is not None and _public_key(key).public_bytes_raw().hex() != signature.public_key:
        raise SignatureError(
            f"the statement was signed with another key ({signature.fingerprint}) than that of "
            f"{key}"
        )
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
    try:
        public.verify(bytes.fromhex(signature.value), _signed(content))
    except InvalidSignature:
        raise SignatureError(
            "the signature does not fit: the statement was changed after it was signed"
        ) from None


def generate(path: Path) -> tuple[Path, str]:
    """Make a key pair: ``path`` (owner-only, PKCS 8) and ``path`` with ``.pub`` appended.

    Returns:
        The public key's file and its fingerprint.

    Raises:
        FileExistsError: one of the files is there; a key is never overwritten.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = private.public_key()
    public_file = path.with_name(f"{path.name}.pub")
    if public_file.exists():
        raise FileExistsError(f"{public_file} exists; a key is never overwritten")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FileExistsError(f"{path} exists; a key is never overwritten") from None
    with os.fdopen(handle, "wb") as file:
        file.write(
            private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        )
    public_file.write_bytes(
        public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    )
    raw = public.public_bytes_raw()
    return public_file, hashlib.sha256(raw).hexdigest()[:16]


def _signed(content: Mapping[str, Any]) -> bytes:
    return _CONTEXT + canonical(content).encode()


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

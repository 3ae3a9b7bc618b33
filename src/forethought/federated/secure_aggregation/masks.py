"""The means to hide a vector: key agreement, masks from a key, and sealed shares.

X25519 (RFC 7748) agrees on a secret, HKDF-SHA256 (RFC 5869) derives one key for each purpose, round
and pair from it, AES-256 in counter mode expands a key to a mask of uniform ring elements, and
AES-256-GCM seals what one client sends another through the server. All of it is ``cryptography``'s.
"""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from forethought.federated.secure_aggregation.ring import Ring, mask
from forethought.federated.secure_aggregation.settings import SecureAggregationError

KEY_BYTES = 32
# Elements expanded at a time: stays in cache.
_CHUNK = 1 << 15


def public_key(private: bytes) -> bytes:
    """The 32 public bytes of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """A 32-byte key that both sides of a key agreement derive.

    Args:
        private: one side's. public: the other's.
        purpose: run, round, pair and use; keys of different purposes are independent.

    Raises:
        SecureAggregationError: a public key of small order, which no honest client has.
    """
    try:
        other = X25519PublicKey.from_public_bytes(public)
        secret = X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError as error:
        raise SecureAggregationError(f"a client's mask key is no X25519 key: {error}") from error
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(secret)


def add_mask(into: Ring, key: bytes, sign: int, bits: int) -> None:
    """Add (sign 1) or take away (sign −1) the mask of ``key`` in place, modulo 2⁶⁴.

    A key is used for one mask only, so the counter begins at zero.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    width = -(-bits // 8)
    for start in range(0, len(into), _CHUNK):
        part = into[start : start + _CHUNK]
        drawn = np.frombuffer(stream.update(bytes(width * len(part))), np.uint8)
        wide = np.zeros((len(part), 8), np.uint8)
        wide[:, :width] = drawn.reshape(-1, width)
        elements = wide.reshape(-1).view("<u8").astype(np.uint64) & mask(bits)
        if sign > 0:
            part += elements
        else:
            part -= elements


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """``content`` encrypted and authenticated together with ``about``; a key seals once."""
    return AESGCM(key).encrypt(bytes(12), content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The inverse of :func:`seal`.

    Raises:
        SecureAggregationError: altered, or sealed for something else.
    """
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        raise SecureAggregationError(
            "a sealed share was altered on its way, or is for another round"
        ) from None

"""The assumptions of secure aggregation about a cohort, and their consequences for noise and
thresholds.

**Threat model.** The server is honest but curious: it follows the protocol and keeps all it sees.
Up to ``colluders`` clients tell it all they know, and up to ``dropouts`` clients drop out at any
moment of a round. The server then learns the modular sum of the survivors' noised sums, and nothing
else (Bonawitz et al. 2017, Theorem 6.3). In that sum, at least *honest* = clients − dropouts −
colluders clients' noise is unknown to the server, so a client adds a share σ²/honest of the
variance.

Protection beyond this model: clients sign their keys; every client answers one unmasking a round,
for at least clients − dropouts survivors; and with this threshold a server that sends different
lists to different clients cannot open two sums (their Section 6.2: 2·threshold > clients +
colluders). If all of this fails, each client's noised sum still has its own plan's guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from forethought.values.checks import real, whole
from forethought.values.serialisation import build

if TYPE_CHECKING:
    from forethought.federated.federation import Federation


# Conversion between noised sums on a grid and elements of a ring.
#
# A sum with ``noise="grid"`` (:mod:`forethought.rounds.randomness`) is a multiple of its step in
# every coordinate. Reduction modulo 2ᵇ is post-processing of the integer sum: an overflow costs
# accuracy, but no privacy.


Ring = NDArray[np.uint64]
LEAST_BITS, MOST_BITS = 8, 64


def to_ring(vector: NDArray[np.float64], step: float, bits: int) -> Ring:
    """Each coordinate divided by ``step``, modulo 2^``bits``: uint64, of the vector's shape.

    Raises:
        ValueError: a coordinate that is no whole number of steps, or more than 2⁵³ steps.
    """
    steps = np.asarray(vector, np.float64) / step
    whole = np.rint(steps)
    # NaN and ∞ also fail this test. A double holds whole numbers exactly up to 2⁵³.
    if not (np.abs(whole) <= 2.0**53).all() or (whole != steps).any():
        raise ValueError(
            f"a coordinate is no whole number of steps of {step:g}: secure aggregation takes "
            "noised sums of a plan with noise='grid', as they were released"
        )
    return whole.astype(np.int64).view(np.uint64) & mask(bits)


def from_ring(total: Ring, step: float, bits: int) -> NDArray[np.float64]:
    """Each element as its signed representative nearest to 0, times ``step``: float64."""
    shift = np.uint64(64 - bits)
    signed = (total << shift).view(np.int64) >> np.int64(64 - bits)
    return signed.astype(np.float64) * step


def mask(bits: int) -> np.uint64:
    """2^``bits`` − 1."""
    return np.uint64((1 << bits) - 1)


def pack(elements: Ring, bits: int) -> NDArray[np.int64]:
    """Each element in ⌈bits/8⌉ bytes, low byte first, padded with zeros to 64-bit words."""
    width = -(-bits // 8)
    little = elements.astype("<u8").view(np.uint8).reshape(-1, 8)
    content = np.ascontiguousarray(little[:, :width]).tobytes()
    return np.frombuffer(content + bytes(-len(content) % 8), "<i8").astype(np.int64)


def unpack(content: NDArray[np.int64], bits: int, size: int) -> Ring:
    """The inverse of :func:`pack`.

    Raises:
        ValueError: not ``size`` elements, or one outside the ring.
    """
    width = -(-bits // 8)
    length = width * size
    whole = content.astype("<i8").tobytes()
    if len(whole) != length + -length % 8 or any(whole[length:]):
        raise ValueError(f"{len(whole)} bytes where {length} and padding belong")
    elements = _widened(whole[:length], width)
    if (elements > mask(bits)).any():
        raise ValueError(f"an element outside the ring of 2^{bits}")
    return elements


def _widened(content: bytes, width: int) -> Ring:
    """Numbers of ``width`` bytes each, low byte first, as uint64."""
    wide = np.zeros((len(content) // width, 8), np.uint8)
    wide[:, :width] = np.frombuffer(content, np.uint8).reshape(-1, width)
    return wide.reshape(-1).view("<u8").astype(np.uint64)


def overflow_chance(
    largest: float, noise_std: float, step: float, bits: int, coordinates: int
) -> float:
    """An upper bound on the probability that any coordinate of the cohort's sum overflows the ring.

    Args:
        largest: bound on a coordinate of the cohort's sum before noise.
        noise_std: standard deviation of the noise of all clients together; its tail is that of a
            discrete Gaussian, 2·exp(−x²/(2·std²)) (Canonne, Kamath and Steinke 2020,
            Proposition 25).
        step: of the grid. bits: of the ring. coordinates: how many, over all sums.
    """
    room = step * 2.0 ** (bits - 1) - step - largest
    if room <= 0:
        return 1.0
    return min(1.0, 2.0 * coordinates * math.exp(-0.5 * (room / noise_std) ** 2))


# Threshold secret sharing: Shamir 1979, byte by byte over GF(2⁸).
#
# The field is that of AES (polynomial x⁸ + x⁴ + x³ + x + 1). Fewer shares than the threshold are
# independent of the secret. Secret bytes index the tables, so the running time may depend on them:
# each side runs on its owner's machine, and no attacker of the threat model measures this time.


# One share for each point 1 … 255 of the field.
MOST_SHARES = 255
# The most false shares of one secret that are identified.
_MOST_FALSE = 2

_Bytes = NDArray[np.uint8]


def _tables() -> tuple[_Bytes, NDArray[np.int64]]:
    powers = np.zeros(510, np.uint8)
    logarithms = np.zeros(256, np.int64)
    value = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        doubled = value << 1
        value ^= doubled ^ (0x11B if doubled & 0x100 else 0)  # times 3, which generates the field
    return powers, logarithms


_POWERS, _LOGARITHMS = _tables()


def _times(one: _Bytes, other: NDArray[Any]) -> _Bytes:
    product = _POWERS[_LOGARITHMS[one] + _LOGARITHMS[other]]
    return np.where((one == 0) | (other == 0), np.uint8(0), product)


def split(
    secret: bytes, points: list[int], threshold: int, entropy: Callable[[int], bytes]
) -> dict[int, bytes]:
    """Split a secret into one share for each point; any ``threshold`` shares determine it.

    Args:
        secret: any length. points: different, each from 1 to 255.
        threshold: from 1 to the number of points.
        entropy: n → n uniform secret bytes.

    Raises:
        ValueError: points or threshold outside their range.
    """
    if len(set(points)) < len(points) or not all(1 <= p <= MOST_SHARES for p in points):
        raise ValueError(f"shares go to different points from 1 to {MOST_SHARES}, not {points}")
    if not 1 <= threshold <= len(points):
        raise ValueError(f"a threshold of {threshold} does not go with {len(points)} shares")
    drawn = np.frombuffer(entropy((threshold - 1) * len(secret)), np.uint8)
    higher = drawn.reshape(threshold - 1, len(secret))
    at = np.array(points)[:, None]
    values = np.zeros((len(points), len(secret)), np.uint8)
    for coefficient in higher[::-1]:  # Horner, from the highest power down
        values = _times(values ^ coefficient, at)
    values ^= np.frombuffer(secret, np.uint8)
    return {point: value.tobytes() for point, value in zip(points, values, strict=True)}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, by Lagrange interpolation at 0 of ``threshold`` of the shares.

    Raises:
        ValueError: too few shares, or of different lengths.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares of {threshold} that are needed")
    chosen = dict(sorted(shares.items())[:threshold])
    if len({len(share) for share in chosen.values()}) != 1:
        raise ValueError("shares of one secret have one length")
    points = np.array(list(chosen))
    values = np.frombuffer(b"".join(chosen.values()), np.uint8).reshape(len(points), -1)
    # The product of other/(other − point); in this field minus equals plus (XOR). The table's
    # logarithm of 0 is 0, so a point beside itself adds nothing to the second sum.
    logarithms = _LOGARITHMS[points]
    differences = _LOGARITHMS[points[:, None] ^ points].sum(axis=1)
    factors = _POWERS[(logarithms.sum() - logarithms - differences) % 255]
    found: bytes = np.bitwise_xor.reduce(_times(values, factors[:, None])).tobytes()
    return found


def opened(
    shares: Mapping[int, bytes],
    threshold: int,
    right: Callable[[bytes], bool],
    suspects: Collection[int] = (),
) -> tuple[bytes | None, set[int]]:
    """The secret despite up to two false shares, and the points of these; None: not found.

    Args:
        right: True if its argument is the secret that was shared.
        suspects: points whose shares of other secrets were false: left out first.

    Raises:
        ValueError: shares of different lengths.
    """
    spare = min(len(shares) - threshold, _MOST_FALSE)
    tries = (combinations(sorted(shares), count) for count in range(spare + 1))
    for left_out in chain([tuple(suspects)], *tries):
        rest = {point: share for point, share in shares.items() if point not in left_out}
        if len(rest) < threshold or not right(secret := combine(rest, threshold)):
            continue
        good = dict(sorted(rest.items())[: threshold - 1])
        return secret, {
            point
            for point in shares.keys() - good.keys()
            if combine({**good, point: shares[point]}, threshold) != secret
        }
    return None, set()


class SecureAggregationError(ValueError):
    """Settings that do not protect, an unsuitable federation, or a round that failed."""


@dataclass(frozen=True)
class SecureAggregation:
    """The settings of secure aggregation for a cohort.

    Args:
        clients: number of clients that a round asks: all of a federation, or its cohort.
        dropouts: number of them that may drop out during a round; with more the round is lost, and
            nothing is revealed.
        colluders: number of them that may tell the server all they know.
        bits: the ring has 2^bits elements; messages take ⌈bits/8⌉ bytes a parameter.
        patience: seconds that a step of a round waits for the last client.

    Raises:
        SecureAggregationError: fewer than two honest clients would be left, or the server could
            open two sums. ValueError: a value out of its range.

    >>> SecureAggregation(clients=10, dropouts=2, colluders=2).honest
    6
    """

    clients: int
    dropouts: int = 0
    colluders: int = 0
    bits: int = 48
    patience: float = 60.0

    def __post_init__(self) -> None:
        whole("clients", self.clients, least=2, most=MOST_SHARES)
        whole("dropouts", self.dropouts, least=0)
        whole("colluders", self.colluders, least=0)
        whole("bits", self.bits, least=LEAST_BITS, most=MOST_BITS)
        real("patience", self.patience, above=0)
        if self.honest < 2:
            raise SecureAggregationError(
                f"without drop-outs and colluders {self.honest} of {self.clients} clients would be "
                "left, and fewer than two hide nobody: ask more clients, or assume fewer of either"
            )
        if 2 * self.threshold <= self.clients + self.colluders:
            raise SecureAggregationError(
                "a server could open two sums of one round: 2·(clients − dropouts) must be above "
                f"clients + colluders, not {2 * self.threshold} at {self.clients + self.colluders}"
            )

    @property
    def threshold(self) -> int:
        """Number of shares that open a secret, and the fewest clients whose sum is opened."""
        return self.clients - self.dropouts

    @property
    def honest(self) -> int:
        """Least number of clients in an opened sum whose noise the server does not know."""
        return self.clients - self.dropouts - self.colluders

    @property
    def noise_share(self) -> float:
        """A client's own noise multiplier divided by that of the sum: 1/√honest."""
        return float(self.honest**-0.5)

    def require(self, federation: Federation) -> None:
        """Refuse a federation that does not fit these settings.

        Raises:
            SecureAggregationError: names the term that does not fit, and one that would.
        """
        if federation.exchanged != "gradients" or federation.local_rounds != 1:
            raise SecureAggregationError(
                "secure aggregation sums the noised sums of one round, else others' noise protects "
                "nothing: set exchanged to 'gradients' and local_rounds to 1"
            )
        if federation.robust.kind != "mean":
            raise SecureAggregationError(
                f"robust {federation.robust.kind!r} looks at single updates, which secure "
                "aggregation hides: use 'mean', or do without one of the two"
            )
        if federation.deadline is not None:
            raise SecureAggregationError("masks wait by their own patience: leave the deadline out")
        asked = federation.cohort or len(federation.members)
        if asked != self.clients:
            raise SecureAggregationError(f"a round asks {asked} clients, secure= {self.clients}")
        if federation.cohort is not None:
            require_steady(federation)
        plans = federation.plans
        if any(plan.clip.rule == "quantile" for plan in plans):
            raise SecureAggregationError(
                "the clip rule 'quantile' gives every client a norm of its own, and noise in "
                "proportion: where another's is smaller, it hides too little. Take the rule 'flat'"
            )
        # In every round all clients need the same grid step and the same noise.
        noises = ([(part.count, part.noise_multiplier) for part in one.mechanism] for one in plans)
        kinds = {
            (plan.noise, plan.clip, plan.contribution.kind, *noise)
            for plan, noise in zip(plans, noises, strict=True)
        }
        if any(plan.noise != "grid" for plan in plans) or len(kinds) > 1:
            raise SecureAggregationError(
                "clients that are summed have noise='grid', one clipping and one noise multiplier "
                "in every round: give all plans the same (sizes and sampling rates may differ)"
            )

    def to_dict(self) -> dict[str, Any]:
        """The settings as a JSON-serialisable mapping, for :attr:`Federation.secure`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SecureAggregation:
        """The inverse of :meth:`to_dict`; refuses unknown keys."""
        return build(cls, values, "secure aggregation")


def require_steady(federation: Federation) -> None:
    """Refuse noise that changes with the round, where clients may miss rounds.

    Raises:
        SecureAggregationError: a client that missed a round would add other noise to a sum.
    """
    plans = federation.plans
    if any(len(plan.mechanism.rounds) > 1 or plan.clip.final is not None for plan in plans):
        raise SecureAggregationError(
            "clients may miss rounds, as those of a cohort do, so all rounds need one noise "
            "multiplier, sampling and clip norm: plan rounds of one kind, or leave the cohort out"
        )


# Cryptography: key agreement, masks from a key, and sealed shares.
#
# X25519 (RFC 7748) agrees on a secret, HKDF-SHA256 (RFC 5869) derives one key for each purpose,
# round and pair from it, AES-256 in counter mode expands a key to a mask of uniform ring elements,
# and AES-256-GCM seals the shares that one client sends another through the server. The package
# ``cryptography`` implements all of it.


KEY_BYTES = 32
# Number of elements expanded at a time, so that they stay in the processor's cache.
_CHUNK = 1 << 15


def public_key(private: bytes) -> bytes:
    """The 32 public bytes of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """A 32-byte key that both sides of a key agreement derive.

    Args:
        private: one side's private key. public: the other side's public key; 32 bytes each.
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
    """Add (sign 1) or subtract (sign −1) the mask of ``key`` in place, modulo 2⁶⁴.

    A key is used for one mask only, so the counter begins at zero.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    width = -(-bits // 8)
    for start in range(0, len(into), _CHUNK):
        part = into[start : start + _CHUNK]
        elements = _widened(stream.update(bytes(width * len(part))), width) & mask(bits)
        if sign > 0:
            part += elements
        else:
            part -= elements


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Encrypt ``content`` and authenticate it with ``about``; a key may seal only once."""
    return AESGCM(key).encrypt(bytes(12), content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The inverse of :func:`seal`.

    Raises:
        SecureAggregationError: the bytes were altered, or sealed with another key or ``about``.
    """
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        raise SecureAggregationError(
            "a sealed share was altered on its way, or is for another round"
        ) from None

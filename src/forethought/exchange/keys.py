"""The members of a run: their agreement, the public roster, and each member's own keys."""

from __future__ import annotations

import datetime
import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from forethought.exchange.messages import SERVER
from forethought.values.plan import Plan, Transcript
from forethought.values.serialisation import Readers, Stored, canonical, each, write_secret

# The roster: name, signing key and certificate of every member, in one public file.
#
# Every member makes its own keys and hands over only its public :class:`Identity`; the organiser of
# the federation joins the identities to a :class:`Roster`, which all members then hold. There is no
# certificate authority: a certificate is trusted because it is in the roster, so compare the
# roster's fingerprint over another channel before a run.


# The file of a roster, the file of a member's policy, and the schema of that file.
ROSTER, POLICY, POLICY_SCHEMA = "roster.json", "policy.json", "forethought/policy/1"
# The name of a federation's server among its members.
SERVER_NAME = "server"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# Points of small order on edwards25519, without their sign bit (and p, p + 1, which some libraries
# read as 0 and 1): under such a key one signature fits many messages.
_WEAK = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        *(f"{low}" + "ff" * 30 + "7f" for low in ("ec", "ed", "ee")),
    )
)


class RosterError(ValueError):
    """A roster with a bad or repeated name or key, or one that does not fit the run."""


def require_name(name: object) -> None:
    """Refuse what is no member's name: it names folders as well. Raises RosterError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RosterError(
            f"{name!r} is no member's name: give 1 to 63 small letters, digits, dashes "
            "and underscores, beginning with a letter or a digit"
        )


@dataclass(frozen=True)
class Identity(Stored):
    """The public part of a member.

    Args:
        name: small letters, digits, dashes, underscores. The server's is "server".
        public_key: Ed25519, 32 bytes in hexadecimal: signs frames.
        certificate: X.509 in PEM form, for connections.

    Raises:
        RosterError: a name or a key that cannot be used.
    """

    SCHEMA: ClassVar[str] = "forethought/identity/1"
    CALLED: ClassVar[str] = "identity"

    name: str
    public_key: str
    certificate: str

    def __post_init__(self) -> None:
        require_name(self.name)
        try:
            raw = bytes.fromhex(self.public_key)
            if len(raw) != 32 or raw[:31] + bytes([raw[31] & 0x7F]) in _WEAK:
                raise ValueError("not a key of 32 bytes that only its holder can sign with")
            Ed25519PublicKey.from_public_bytes(raw)
        except (ValueError, TypeError) as error:
            raise RosterError(f"the public key of {self.name}: {error}") from None
        try:
            shown = x509.load_pem_x509_certificate(self.certificate.encode()).public_key()
        except (ValueError, AttributeError, UnsupportedAlgorithm) as error:
            raise RosterError(f"the certificate of {self.name} is damaged: {error}") from None
        # An RSA certificate could be shown below TLS 1.3: see forethought.holders.grpc.
        if not isinstance(shown, ec.EllipticCurvePublicKey):
            raise RosterError(f"the certificate of {self.name} is not one that keys were made with")


_Agreed = TypeVar("_Agreed", bound="Agreement")


class Everybody(Stored):
    """Base class of :class:`Roster` and of a gossip's roster.

    Attributes:
        FIRST: the place of the first of :attr:`identities`.
    """

    FIRST: ClassVar[int] = 0
    nonce: str

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The identities of all members, a server's first."""
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        """The names of all members, in the order of :attr:`identities`."""
        return [identity.name for identity in self.identities]

    def place(self, keys: Keys) -> int:
        """The place of the member that these keys belong to.

        Raises:
            RosterError: they belong to no member.
        """
        if keys.identity not in self.identities:
            raise RosterError(
                f"the keys are those of {keys.identity.name!r}, or were made anew: the roster has "
                f"{', '.join(self.names)}, with the keys they had when it was made"
            )
        return self.FIRST + self.identities.index(keys.identity)

    def with_keys(self, agreed: _Agreed) -> _Agreed:
        """The agreement with these keys and the nonce, so that its run id depends on them.

        Raises:
            ValueError: of the agreement's class ``REFUSAL``: other names, or another order.
        """
        server = {"server_key": self.identities[0].public_key} if self.FIRST == SERVER else {}
        identities, given = self.identities[len(server) :], self.names[len(server) :]
        if agreed.names != given:
            raise agreed.REFUSAL(
                f"the job's {agreed.MEMBER}s are {', '.join(agreed.names)}; the roster's "
                f"{', '.join(given)}: join the same, in order"
            )
        members = tuple(
            replace(member, public_key=identity.public_key)
            for member, identity in zip(agreed.members, identities, strict=True)
        )
        changes: dict[str, Any] = {"members": members, "nonce": self.nonce, **server}
        return replace(agreed, **changes)

    def require(self, agreed: Agreement) -> None:
        """Refuse an agreement that has other keys than this roster.

        Raises:
            ValueError: of the agreement's class ``REFUSAL``: names, their order, keys or the nonce.
        """
        if self.with_keys(agreed) != agreed:
            raise agreed.REFUSAL(
                f"this roster's keys are not those of the {agreed.CALLED}: take {ROSTER} and "
                f"{agreed.file} from one place, made together"
            )

    @property
    def fingerprint(self) -> str:
        """The first 32 hexadecimal digits of the roster's SHA-256, to compare by telephone."""
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Roster(Everybody):
    """All members of a federation.

    Args:
        server: the server's identity. clients: the clients' identities, in the order of places.
        nonce: 32 hexadecimal digits drawn when the roster was made, so that no two runs have the
            same name and messages of one run are not valid in another.

    Raises:
        RosterError: no client, a bad nonce, or a name, key or certificate that occurs twice.
    """

    SCHEMA: ClassVar[str] = "forethought/roster/1"
    CALLED: ClassVar[str] = "roster"
    FIRST: ClassVar[int] = SERVER
    PARTS: ClassVar[Readers] = {"server": Identity.from_dict, "clients": each(Identity.from_dict)}

    server: Identity
    clients: tuple[Identity, ...]
    nonce: str

    def __post_init__(self) -> None:
        if not self.clients:
            raise RosterError("a roster needs at least one client")
        if len(self.nonce) != 32 or not set(self.nonce) <= set("0123456789abcdef"):
            raise RosterError("a roster's nonce has 32 hexadecimal digits")
        for what in ("name", "public_key", "certificate"):
            held = [getattr(identity, what) for identity in self.identities]
            twice = sorted({value for value in held if held.count(value) > 1})
            if twice:
                raise RosterError(
                    f"two members have the same {what.replace('_', ' ')}: every member makes its "
                    "own with forethought federate keys"
                )

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The identities of all members, the server's first."""
        return (self.server, *self.clients)

    @classmethod
    def of(cls, server: Identity, clients: Iterable[Identity]) -> Roster:
        """A new roster with a fresh random nonce."""
        return cls(server, tuple(clients), secrets.token_hex(16))

    def signed(self, client: int, content: bytes, signature: bytes) -> bool:
        """True if ``signature`` is the signature of the client at a place on ``content``."""
        try:
            key = bytes.fromhex(self.clients[client].public_key)
            Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
        except (IndexError, InvalidSignature):
            return False
        return True

    @property
    def public_keys(self) -> dict[int, bytes]:
        """Place → public key of every client."""
        return {place: bytes.fromhex(one.public_key) for place, one in enumerate(self.clients)}


# A member's own keys: one for signing frames, one for its connections, and its certificate.
#
# The private keys are made where they are used and never leave that folder. The certificate is
# self-signed (ECDSA on P-256, which all TLS libraries support) and issued for the member's name
# rather than for a host. It cannot sign other certificates; it is trusted because it is in the
# roster.


SIGNING, CONNECTION, IDENTITY = "signing.pem", "connection.pem", "identity.json"
DAYS = 3650
# Clocks differ: a certificate is valid from a day before it was made.
_EARLIER = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Keys:
    """A member's private keys and its public identity.

    Args:
        identity: the public part. signing: Ed25519 private key. connection: TLS private key, PEM.
    """

    identity: Identity
    signing: Ed25519PrivateKey
    connection: bytes

    @classmethod
    def make(cls, folder: Path, name: str) -> Keys:
        """Make new keys in a folder, readable by its owner only.

        Raises:
            FileExistsError: there are keys; they are never overwritten.
            RosterError: the name is not permitted.
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
                raise FileExistsError(f"{path} exists; keys are not overwritten: use a new folder")
        own = cls(identity, signing, _pem(connection))
        write_secret(folder / SIGNING, _pem(signing))
        write_secret(folder / CONNECTION, own.connection)
        identity.save(folder / IDENTITY)
        return own

    @classmethod
    def load(cls, folder: Path) -> Keys:
        """The keys in a folder.

        Raises:
            OSError: a file is missing. RosterError: they are damaged, or do not belong together.
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
        # No signing of certificates: a member must not certify a name that is not its own.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


@dataclass(frozen=True)
class Agreement(Stored):
    """The agreement of all members of a federation or a gossip, made before any exchange.

    Each member has a name, the place of its plan in ``plans``, and a public key.

    Attributes:
        MEMBER: the word for one member. REFUSAL: exception class for an invalid agreement.
    """

    MEMBER: ClassVar[str]
    REFUSAL: ClassVar[type[ValueError]]

    members: tuple[Any, ...]
    plans: tuple[Plan, ...]

    @property
    def file(self) -> str:
        """The name of the agreement's file."""
        return f"{self.CALLED}.json"

    @property
    def names(self) -> list[str]:
        """The name of each member."""
        return [member.name for member in self.members]

    @property
    def own_plans(self) -> list[Plan]:
        """The plan of each member."""
        return [self.plan(place) for place in range(len(self.members))]

    def plan(self, place: int) -> Plan:
        """A member's plan."""
        return self.plans[self.members[place].plan]

    def require_members(self) -> None:
        """Refuse two members of one name, and a plan that does not exist or that no member can run.

        Raises:
            ValueError: of the class ``REFUSAL``.
        """
        one = self.MEMBER
        if len(set(self.names)) != len(self.members):
            raise self.REFUSAL(f"two {one}s have one name: every {one} needs its own")
        for member in self.members:
            if not 0 <= member.plan < len(self.plans):
                raise self.REFUSAL(
                    f"{one} {member.name!r} has plan {member.plan}, there are {len(self.plans)}"
                )
            self._require_runnable(self.plans[member.plan])

    def _require_runnable(self, plan: Plan) -> None:
        """Refuse a plan that no member can run by itself."""
        refused = {
            f"no {self.MEMBER} releases a preparation of the data: plan without preparation=, a "
            "linear model with centre=False": plan.preparation is not None,
            "gradient_filter= takes noised means on weights that the run itself stepped; here "
            "others send the weights: drop it": plan.gradient_filter is not None,
            f"correlated noise is accounted over all rounds of one run, and a {self.MEMBER}'s "
            "rounds may be lost: plan with independent noise": plan.mechanism.correlated,
        }
        for words, wrong in refused.items():
            if wrong:
                raise self.REFUSAL(words)

    def require_released(self, place: int, transcript: Transcript | None) -> None:
        """Refuse a statement for a member that released nothing.

        Args:
            place: the member's place. transcript: its releases; None: it released its whole plan.

        Raises:
            ValueError: of the class ``REFUSAL``.
        """
        if transcript is not None and not len(transcript):
            name = self.members[place].name
            raise self.REFUSAL(f"{name!r} released nothing: there is no statement to write")

    @cached_property
    def run_id(self) -> bytes:
        """32 bytes that name this run: a hash of plans, architecture, members and rules."""
        text = f"forethought {self.CALLED}\n" + canonical(self.to_dict())
        return hashlib.sha256(text.encode()).digest()

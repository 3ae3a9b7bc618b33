"""Mutual TLS 1.3 between members whose certificates are in the roster, and nobody else.

Below 1.3 no cipher is left (:mod:`forethought.network` says how), and the server asks every
connection for its version as well.
"""

from __future__ import annotations

import grpc

from forethought.exchange.keys import Keys
from forethought.exchange.roster import Roster
from forethought.network import RESTRICTED

TLS = b"TLSv1.3"


class ConnectionPolicyError(RuntimeError):
    """Connections of this process could fall below TLS 1.3."""


def server_credentials(keys: Keys, roster: Roster) -> grpc.ServerCredentials:
    """For a server that only the roster's clients can connect to.

    Raises:
        ConnectionPolicyError: see :func:`channel_credentials`.
    """
    _require_ciphers()
    pair = (keys.connection, keys.identity.certificate.encode())
    clients = "".join(identity.certificate for identity in roster.clients)
    return grpc.ssl_server_credentials([pair], clients.encode(), require_client_auth=True)


def channel_credentials(keys: Keys, roster: Roster) -> grpc.ChannelCredentials:
    """For a client that connects to the roster's server only.

    Raises:
        ConnectionPolicyError: grpc was loaded too early to be held to TLS 1.3.
    """
    _require_ciphers()
    return grpc.ssl_channel_credentials(
        roster.server.certificate.encode(), keys.connection, keys.identity.certificate.encode()
    )


def _require_ciphers() -> None:
    if not RESTRICTED:
        raise ConnectionPolicyError(
            "grpc was loaded before forethought.network, which has to choose its ciphers first so "
            "that nothing below TLS 1.3 is spoken: import forethought.network before grpc"
        )


def place_of(context: grpc.aio.ServicerContext[bytes, bytes], roster: Roster) -> int | None:
    """Who is at the other end of a connection; None: nobody who may be.

    Also None below TLS 1.3.
    """
    about = context.auth_context()
    if about.get("ssl_tls_version", [TLS])[0] != TLS:
        return None
    shown = b"".join(about.get("x509_pem_cert", [])).strip()
    for place, identity in enumerate(roster.clients):
        if identity.certificate.encode().strip() == shown:
            return place
    return None

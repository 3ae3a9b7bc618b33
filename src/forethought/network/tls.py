"""Mutual TLS 1.3 between members whose certificates are in the roster, and nobody else.

grpcio has no setting for the least version of TLS. So its list of ciphers for TLS 1.2 is set to one
that only RSA certificates could use: ours are ECDSA, and no handshake below 1.3 finds a cipher
(those of 1.3 are in no list). The server asks every connection for its version as well.
"""

from __future__ import annotations

import os

from forethought.exchange.keys import Keys
from forethought.exchange.roster import Roster

# Read when grpc first opens a connection in this process; so nothing here imports grpc before it.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"

import grpc

TLS = b"TLSv1.3"


def server_credentials(keys: Keys, roster: Roster) -> grpc.ServerCredentials:
    """For a server that only the roster's clients can connect to."""
    pair = (keys.connection, keys.identity.certificate.encode())
    clients = "".join(identity.certificate for identity in roster.clients)
    return grpc.ssl_server_credentials([pair], clients.encode(), require_client_auth=True)


def channel_credentials(keys: Keys, roster: Roster) -> grpc.ChannelCredentials:
    """For a client that connects to the roster's server only."""
    return grpc.ssl_channel_credentials(
        roster.server.certificate.encode(), keys.connection, keys.identity.certificate.encode()
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

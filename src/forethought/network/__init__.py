"""Clients and a server as processes: the machines of ``federated`` over gRPC.

grpcio has no setting for the least version of TLS, and reads its list of ciphers when it is loaded.
So the list is set here, before any file of this room can load it, to one for TLS 1.2 that only RSA
certificates could use. Ours are ECDSA: no handshake below 1.3 finds a cipher (those of 1.3 are in
no list). Other connections of this process are held to the same.
"""

from __future__ import annotations

import os
import sys

_NAME, _CIPHERS = "GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES128-GCM-SHA256"
#: Whether grpc was loaded with that list.
RESTRICTED = "grpc" not in sys.modules or os.environ.get(_NAME) == _CIPHERS
os.environ[_NAME] = _CIPHERS

"""Gossip between real processes: under torchrun, or between sites over gRPC."""

# It chooses TLS's ciphers, which must happen before anything in here loads grpc.
import forethought.network as _network  # noqa: F401

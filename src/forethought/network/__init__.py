"""Clients and a server as processes: the machines of ``federated`` over gRPC."""

"""Gossip between real processes: under torchrun, or between sites over gRPC."""

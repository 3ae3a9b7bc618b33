"""Federated learning: the state machines of clients and server, and their agreement."""

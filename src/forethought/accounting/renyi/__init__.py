"""Rényi differential privacy: curves, a filter for adaptive rounds, private selection."""

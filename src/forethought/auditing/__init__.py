"""Attempts to refute what a run claims: they refute or fail to refute, and never prove."""

"""Audits: attempts to refute the claim of a run. They refute or fail to refute, and never prove."""

"""The papers' formulas under their own names, beside the exact figures."""

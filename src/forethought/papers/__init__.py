"""The formulas of five published papers under their own names, beside the exact figures."""

"""From a Mechanism to a Statement. NumPy and SciPy only: importable without torch."""

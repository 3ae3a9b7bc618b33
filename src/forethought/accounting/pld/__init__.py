"""Privacy loss distributions: composed privacy profiles with certified ends, numerically."""

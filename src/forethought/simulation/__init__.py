"""A virtual clock, and speeds, for machines that know neither time nor network."""

"""A virtual clock, speeds and faults for machines that know neither time nor network."""

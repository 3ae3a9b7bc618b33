"""One file a command; forethought.cli puts them together."""

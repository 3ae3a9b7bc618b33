"""The commands of the command line, which forethought.cli combines."""

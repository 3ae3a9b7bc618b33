"""Jobs: data, plans, runs and run folders of a request, for the command line and for Python."""

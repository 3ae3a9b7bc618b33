"""From a request to data, plan, run and folder: one way for the command line and for Python."""

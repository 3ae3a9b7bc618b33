"""Pictures and documents from a plan or a finished run."""

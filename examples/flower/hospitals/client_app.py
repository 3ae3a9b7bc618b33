"""The ClientApp; the SuperNode's configuration says whose client."""

from forethought.jobs.flower import client_app

app = client_app()

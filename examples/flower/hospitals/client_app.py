"""The ClientApp; the SuperNode's configuration says whose client."""

from forethought.jobs.federate_network import client_app

app = client_app()

"""The ServerApp; the run's configuration says which federation."""

from forethought.jobs.federate_network import server_app

app = server_app()

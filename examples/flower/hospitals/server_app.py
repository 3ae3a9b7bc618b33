"""The ServerApp; the run's configuration says which federation."""

from forethought.jobs.flower import server_app

app = server_app()

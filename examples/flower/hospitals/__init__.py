"""A Flower app: a forethought federation, carried by Flower."""

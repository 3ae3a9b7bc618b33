"""Private training without a server: workers on a graph average with neighbours and step alone."""

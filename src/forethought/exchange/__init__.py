"""Messages between clients and a server, and how they are signed, stored and carried."""

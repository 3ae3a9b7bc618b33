"""Messages between clients and a server, their signatures, and the storage of both sides."""

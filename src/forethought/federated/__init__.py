"""Many holders, one model: the machines of clients and server, and what drives them."""

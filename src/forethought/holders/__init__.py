"""One holder's private rounds on weights that others send, here or in several processes."""

"""One script a form."""

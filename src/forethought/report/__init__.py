"""Figures, pages and terminal output for plans, runs, statements and audits."""

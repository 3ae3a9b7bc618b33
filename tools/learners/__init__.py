"""Learners of the constants that the library's patch features come with.

`python experiments/patches/constants.py` runs them.
"""

"""Lets the tests of this folder import what they share."""

import sys
from pathlib import Path

for folder in ("holders", "federated", "gossip"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

"""Plans of thousands of different rounds cost time and memory in proportion to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory that Linux reports")
def test_ten_thousand_different_rounds_stay_small_and_linear() -> None:
    """Under 50 MB on 60,000 records; four times the rounds in less than eight times the time."""
    script = Path(__file__).with_name("many_rounds.py")
    done = subprocess.run(
        [sys.executable, str(script), "10000"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    few, many = found["seconds"]
    assert found["megabytes"] < 50, found
    assert many < 8 * few, found

"""Vectors of one size over and over, and how often the system has to clear their pages."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from forethought.peers import memory

# In a process of its own: the settings are for a process's life. The module is loaded by its file,
# for its room loads gRPC.
PROGRAM = """
import resource, runpy, sys
import numpy as np
if sys.argv[1] == "keep":
    assert runpy.run_path(sys.argv[2])["keep_memory"]()
held = [np.ones(1_000_000, np.float32) for _ in range(4)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for place in range(100):
    held[place % 4] = held[place % 4] + held[(place + 1) % 4]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_a_process_that_keeps_its_memory_touches_no_new_pages() -> None:
    command = [sys.executable, "-c", PROGRAM, "keep", str(Path(memory.__file__))]
    faults = int(subprocess.run(command, capture_output=True, check=True).stdout)
    # A vector is a thousand pages: of a hundred, one or two are new (six where nothing is kept).
    assert faults < 3_000

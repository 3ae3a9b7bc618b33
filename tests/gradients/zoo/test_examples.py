"""The examples with other people's models do what they say, with what is installed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "hugging_face.py"
# Beside a CPU-only torch, torchvision loads only this way; transformers needs it to load.
RUN = """
import runpy, sys
from zoo.oracle import with_torchvision
with_torchvision()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def printed(which: str) -> str:
    paths = [
        str(ROOT / "tests"),
        str(ROOT / "tests" / "gradients"),
        os.environ.get("PYTHONPATH", ""),
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(EXAMPLE), which],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.repeated  # beside a LoRA and the zoo of transformers
def test_all_weights_of_a_small_bert() -> None:
    output = printed("bert")
    assert "differentially private" in output
    found = re.search(r"BERT: ([\d.]+)% of held-out", output)
    # Guessing gets half of 1,156 lines right; 57 % by luck has a probability below 1e-6.
    assert found and float(found[1]) > 57


@pytest.mark.slow
def test_a_lora_on_a_gpt2() -> None:
    output = printed("gpt2")
    assert "differentially private" in output
    found = re.search(r"([\d.]+) nats a byte before, ([\d.]+) after", output)
    assert found and float(found[2]) < float(found[1])

"""Run the rooms that touch kernels under other processors' instructions.

python .ci/instruction_sets.py            # none, AVX2, and all that this machine has
python .ci/instruction_sets.py default    # one of default, avx2, own
python .ci/instruction_sets.py default -- tests/rounds    # other tests than those of the rooms

torch, oneDNN, MKL, OpenBLAS and NumPy are each held to the set: a sum taken in vectors of eight
differs in its last bits from one in vectors of four. Only quick tests run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

ROOT = Path(__file__).resolve().parents[1]
# Rooms that touch kernels, and of the data what makes features.
ROOMS = (
    *("tests/gradients", "tests/rounds"),
    *sorted(
        f"tests/data/test_{name}.py"
        for name in ("features", "patches", "deep_patches", "scattering", "shifted_patches",
                     "shifted_patch_filters")
    ),
    # What is refused there hangs on no kernel.
    "--ignore=tests/gradients/adversaries",
)  # fmt: skip
PYTEST = ("-q", "-m", "not slow", "-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider")


def numpys(kept: tuple[str, ...]) -> str:
    """NumPy's own kernels that are switched off: those found here but for some."""
    return " ".join(
        name
        for name in __cpu_dispatch__
        if __cpu_features__.get(name) and not name.startswith(kept)
    )


SETS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": numpys(()),
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": numpys(("SSE", "SSSE", "POPCNT", "AVX2", "FMA", "F16C",
                                            "X86_V2", "X86_V3")),
    },
    "own": {},
}  # fmt: skip


def main(words: list[str]) -> int:
    """Exit status 0 when the tests pass under every set."""
    names = words[: words.index("--")] if "--" in words else words
    tests = words[len(names) + 1 :] or ROOMS
    unknown = set(names) - SETS.keys()
    if unknown:
        print(f"no instruction set {', '.join(sorted(unknown))}: {', '.join(SETS)}")
        return 2
    good = True
    for name in names or SETS:
        print(f"== instruction set {name}", flush=True)
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **SETS[name]
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *PYTEST, *tests],
            cwd=ROOT,
            env=environment,
            check=False,
        )
        good &= done.returncode == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

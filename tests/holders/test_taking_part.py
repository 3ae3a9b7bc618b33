from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from forethought.exchange.keys import SIGNING, Keys
from forethought.holders import taking_part


def test_keys_that_a_kill_cut_off_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "member"

    def killed(self: object, path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("forethought.exchange.keys.Identity.save", killed)
        taking_part.own_keys(folder, "worker-0")
    made = taking_part.own_keys(folder, "worker-0")
    assert taking_part.own_keys(folder, "worker-0").identity == made.identity
    assert Keys.load(folder).identity == made.identity and (folder / SIGNING).exists()

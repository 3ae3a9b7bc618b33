"""Threads of a run: no more than may be used, and than are free."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from forethought.training import execution as module
from forethought.training.execution import InterruptGuard, cores, free_threads, threads


@pytest.mark.parametrize(
    ("text", "most"),
    [("200000 100000", 2), ("50000 100000", 1), ("max 100000", None), ("nonsense", None)],
)
def test_a_containers_quota_counts(
    text: str, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    assert cores(quota) == (most or 16)
    assert cores(tmp_path / "none") == 16


@pytest.mark.parametrize(
    ("load", "by_load", "expected"),
    [(0.1, True, 8), (3.2, True, 5), (40.0, True, 1), (40.0, False, 8)],
)
def test_cores_that_others_are_busy_on_are_left_alone(
    load: float, by_load: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "cores", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert free_threads(16, by_load=by_load) == expected
    assert free_threads(2, by_load=by_load) == min(2, expected)
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert free_threads(16, by_load=by_load) == 16


def test_torch_has_its_own_number_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_a_handler_of_signals_that_is_not_pythons_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal
    before = handler(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # as where C set it
    with InterruptGuard():
        assert handler(signal.SIGTERM) is before

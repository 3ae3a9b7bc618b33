"""Other people's models: loads torchvision where its compiled operators do not load."""

from __future__ import annotations

import pytest
from zoo.oracle import with_torchvision


@pytest.fixture(scope="session", autouse=True)
def torchvision_loads() -> None:
    with_torchvision()

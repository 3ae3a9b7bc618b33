"""Where to train: a device that torch knows and this machine has, or one clear line."""

from __future__ import annotations

import torch


def usable(device: str | torch.device) -> torch.device:
    """The device, after a tensor was put there.

    Raises:
        ValueError: no such device, or not on this machine; names what there is.
    """
    here = ["cpu"]
    if torch.cuda.is_available():
        here += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        here.append("mps")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ValueError(
            f"device {str(device)!r} cannot be used here: this machine has {', '.join(here)}. "
            "Leave device out to train where the model is"
        ) from error
    return found

"""Where a simulation of several holders begins: anew, or in the folder of an interrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np

from forethought.exchange.messages import Vector
from forethought.holders.recorded import RECORD
from forethought.rounds.randomness import Secrets, Seeds
from forethought.serialisation import Stored
from forethought.training.folder import KEYS, CheckpointError, Keys, RunFolderExistsError

START = "start.npy"
_Agreed = TypeVar("_Agreed", bound=Stored)


def begun(
    folder: Path | None, resume: bool, agreed: _Agreed, name: str, weights: Vector, seeds: Seeds
) -> tuple[Secrets, Vector]:
    """Secrets and first weights: new ones, or those of the simulation that goes on.

    Args:
        folder: of the simulation; None: nothing is kept. agreed: what all agree on.
        name: of its file. weights: the first ones of a new simulation.

    Raises:
        ValueError: nowhere to go on. RunFolderExistsError: the folder holds a simulation.
        CheckpointError: nothing to go on with, or something else was agreed on.
    """
    if folder is None:
        if resume:
            raise ValueError("resume=True goes on in out=: give out")
        return Secrets.draw(seeds), weights
    if resume:
        if not (folder / KEYS).exists():
            raise CheckpointError(f"{folder} holds no simulation that was interrupted")
        if type(agreed).load(folder / name) != agreed:
            raise CheckpointError(
                f"the {agreed.CALLED} of {folder} is another one: go on with the job it began with"
            )
        start: Vector = np.load(folder / START, allow_pickle=False)
        return Keys.read(folder).secrets, start
    if (folder / name).exists() or (folder / RECORD).exists():
        raise RunFolderExistsError(
            f"{folder} holds a simulation: go on with resume (--resume), or choose another folder"
        )
    keys = Keys.draw(seeds)
    keys.write(folder)
    np.save(folder / START, weights)
    agreed.save(folder / name)
    return keys.secrets, weights

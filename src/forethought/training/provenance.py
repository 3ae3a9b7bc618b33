"""Models that were trained before: their earlier runs add to what a new statement says.

A model is recognised by the hash of its weights, or as the same object, among those that this
process trained, and by its weights among the run folders beside the new one. What was trained
elsewhere cannot be known: every Statement names the initial weights as an assumption.
"""

from __future__ import annotations

import hashlib
import weakref
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from forethought.accounting.interval import at_most
from forethought.accounting.statement import Statement, StatementError
from forethought.caveats import Caveat
from forethought.rounds.records import content
from forethought.training.folder import MODEL, STATEMENT

# Run folders beside the new one that are looked at, at most.
NEIGHBOURS = 1000

_objects: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
_weights: dict[bytes, str] = {}


def trained_before(model: torch.nn.Module, folder: Path | None) -> tuple[Caveat, ...]:
    """What is known of an earlier training of the model as it is, for the Statement.

    Args:
        folder: the run folder that is about to be made; those beside it are looked at.
    """
    known = _objects.get(model) or _weights.get(_digest(model))
    if known is None and folder is not None:
        known = _among_folders(model, folder)
    return () if known is None else (Caveat("trained-before", known),)


def remember(model: torch.nn.Module, statement: Statement) -> None:
    """Note that a model was trained, with its final weights."""
    words = f"in this process, {_spent(statement)}"
    earlier = _objects.get(model)
    _objects[model] = words if earlier is None else f"{earlier}; then {words}"
    _weights[_digest(model)] = _objects[model]


def _spent(statement: Statement) -> str:
    if not statement.private:
        return "without a guarantee"
    return f"ε = {at_most(statement.epsilon.upper)} at δ = {at_most(statement.delta, '.3g')}"


def _digest(model: torch.nn.Module) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(content(tensor))
    return state.digest()


def _among_folders(model: torch.nn.Module, folder: Path) -> str | None:
    present = model.state_dict()
    parent = folder.resolve().parent
    if not parent.is_dir():
        return None
    for place, path in enumerate(sorted(parent.glob(f"*/{MODEL}"))):
        if place == NEIGHBOURS:
            break
        if _same_weights(path, present):
            try:
                spent = _spent(Statement.load(path.parent / STATEMENT))
            except (OSError, StatementError):
                spent = "whose statement cannot be read"
            return f"in {path.parent.name}, {spent}"
    return None


def _same_weights(path: Path, present: dict[str, torch.Tensor]) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            if set(file.keys()) != set(present):
                return False
            return all(torch.equal(file.get_tensor(n), t.cpu()) for n, t in present.items())
    except (OSError, SafetensorError, RuntimeError):
        return False

"""A client takes part on the terms of its own job only, whatever federation.json says."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forethought.federated.federation import FederationError
from forethought.gossip.gossip import GossipError
from forethought.jobs import members
from forethought.jobs.job import from_file

JOB = """
[data]
source = "digits"
[model]
name = "linear"
[budget]
epsilon = 4.0
[federation]
clients = 5
rounds = 4
secure = { dropouts = 1, colluders = 1 }
"""
WORDS = (
    "replace-one", "zero-out", "asynchronous", "weights", "gaussian", "median", "adam", "group",
    "full-batch", "none", "root", "adaptive",
)  # fmt: skip
# What may differ, and why the client's guarantee does not rest on it.
HARMLESS = {
    r"members/\d/weight": "the server's affair: how updates become a model",
    r"members/[1-4]/plan|plans/\d/use/.*|(server|robust|averaging)/.*": "post-processing",
    r"(rounds|local_rounds|deadline|absence|resend|plans/\d/(reasons|not_covered)/.*)": (
        "when updates are sent and how many: the ledger and the plan bound what is released"
    ),
    r"plans/\d/privacy/clip/norm": "the noise is a multiple of it",
    r"plans/\d/privacy/mechanism/rounds/\d/(noise_multiplier|count|sampling/rate)": (
        "its epsilon is computed and held against the policy: only less is let through"
    ),
    r"plans/[1-4]/privacy/.*": "another client's promise, which that client compares itself",
    r"plans/\d/privacy/budget(/.*)?|plans/\d/hyperparameters/.*": "a note of how it was chosen",
}


class ReachedError(Exception):
    """It would have connected."""


def connect(*_: Any) -> Any:
    """In place of a connection."""
    raise ReachedError


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list)
        else ()
    )  # fmt: skip
    for key, one in items:
        yield from leaves(one, (*path, key))
    if not isinstance(value, dict | list) or not value:
        yield path


def others(value: Any) -> list[Any]:
    """Values in place of one."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1, 3 * value + 2]
        case float():
            return [value * 0.9, value * 1.1, value * 2]
        case str():
            return [word for word in WORDS if word != value]
        case None:
            return [1, 0.5, {}, "x", {"dropouts": 1}]
        case _:
            return [None, ["x"], {"x": 1}]


@pytest.mark.slow
def test_every_field_is_refused_or_harmless(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    request = from_file(tmp_path / "job.toml")
    members.make_everybody(request, "federation", tmp_path / "keys")
    folder = tmp_path / "keys" / "client-0"
    file = folder / "federation.json"
    whole = json.loads(file.read_text())

    runs = (tmp_path / f"run-{number}" for number in itertools.count())

    def outcome(changed: Any) -> str:
        file.write_text(json.dumps(changed))
        try:
            members.take_part_in_job(request, folder, next(runs), carry=connect)
        except ReachedError:
            return "joined"
        except (FederationError, ValueError) as error:
            return f"refused: {error}"
        raise AssertionError("it ended without an answer")

    assert outcome(whole) == "joined"
    joined, refused = set(), 0
    for path in leaves(whole):
        name = "/".join(map(str, path))
        if re.fullmatch(r"members/[2-4]/.*", name):
            continue  # as member 1
        *parents, last = path
        for value in others(_at(whole, path)):
            changed = copy.deepcopy(whole)
            _at(changed, parents)[last] = value
            if outcome(changed) == "joined":
                joined.add(name)
            else:
                refused += 1
    unexplained = {n for n in joined if not any(re.fullmatch(one, n) for one in HARMLESS)}
    assert not unexplained, unexplained
    assert refused > 100


def _at(value: Any, path: Any) -> Any:
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("plans", 0, "privacy", "mechanism", "adjacency", "zero-out"), "has adjacency"),
        (("secure", "colluders", 0), "has secure"),
        (("secure", None), "has secure"),
        (("seed", 1), "has seed"),
    ],
)
def test_other_terms_are_refused_in_words(change: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    request = from_file(tmp_path / "job.toml")
    members.make_everybody(request, "federation", tmp_path / "keys")
    file = tmp_path / "keys" / "client-0" / "federation.json"
    changed = json.loads(file.read_text())
    *parents, last, value = change
    _at(changed, parents)[last] = value
    file.write_text(json.dumps(changed))
    with pytest.raises(FederationError, match=words):
        members.take_part_in_job(request, file.parent, tmp_path / "run", carry=connect)
    assert not (tmp_path / "run").exists()


def test_a_gossips_worker_takes_part_on_its_own_terms_too(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.partition("[federation]")[0] + "[gossip]\nworkers = 3\n")
    request = from_file(tmp_path / "job.toml")
    members.make_everybody(request, "gossip", tmp_path / "keys")
    folder = next(path for path in (tmp_path / "keys").iterdir() if path.is_dir())
    file = folder / "gossip.json"
    changed = json.loads(file.read_text())
    changed["plans"][0]["privacy"]["mechanism"]["adjacency"] = "zero-out"
    file.write_text(json.dumps(changed))
    with pytest.raises(GossipError, match="has adjacency"):
        members.site_worker(request, folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()

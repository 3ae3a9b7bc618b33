"""A request: a job with the text it was read from, from a file, flags or a run folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from forethought.jobs.job import Job, JobError, explain_errors
from forethought.values.checks import without_none

# Tables as TOML text: Python reads TOML and does not write it.


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values (text, numbers, truth values, lists and mappings of them) as TOML.

    >>> print(to_toml({"data": {"source": "digits"}, "model": {"hidden": [32, 16]}}), end="")
    [data]
    source = "digits"
    <BLANKLINE>
    [model]
    hidden = [32, 16]
    """
    sections = []
    for name, values in tables.items():
        if values:
            rows = [f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items()]
            sections.append("\n".join([f"[{toml_key(name)}]", *rows]))
    return "\n\n".join(sections) + "\n"


def toml_key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else _text(name)


def toml_value(value: Any) -> str:
    """A value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Mapping():
            return (
                "{" + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
            )
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case _:
            return _text(str(value))


def _text(value: str) -> str:
    # The escapes of JSON are TOML's too, but for the one control character it leaves bare.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# A request: a job with the text it was read from, from a file, from flags or from a run folder.


JOB_NAME = "job.toml"
SEEDS = ("seed", "noise_seed")
# Flags that are keys of [budget]; the others are keys of [training].
_BUDGET = ("epsilon", "delta")
# Keys of which one takes the place of the other.
_INSTEAD = {"epochs": "rounds", "rounds": "epochs"}


@dataclass(frozen=True)
class Request:
    """A job with the text it was read from, which is stored with the run.

    Args:
        name: of the job, for its run folder.
        text: what was read; empty for a request without a file.
        job: what it says.
        overrides: in words, what the command line put in place of the file's own.
        folder: where the file is; a model of one's own may lie next to it.
        settled: in words, what the file left to this version, for the released job to say.
    """

    name: str
    text: str
    job: Job
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    settled: tuple[str, ...] = ()

    def released_text(self) -> str:
        """The job as a TOML text that may be shown: as written, or without its seeds.

        Whoever knows a seed can subtract the noise, and a run folder is there to be handed on.
        """
        run = self.job.run.model_dump(exclude_unset=True)
        if not (self.overrides or self.settled) and not any(name in run for name in SEEDS):
            return self.text
        tables = self.job.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        tables["run"] = {k: v for k, v in tables.get("run", {}).items() if k not in SEEDS}
        return "# As it was run; seeds are left out.\n" + to_toml(tables)


def from_file(path: Path) -> Request:
    """Read a job file. Raises JobError."""
    job = Job.load(path)
    return Request(path.stem, path.read_text(encoding="utf-8"), job, folder=path.parent)


def demo() -> Request:
    """The built-in job: scikit-learn's handwritten digits at ε = 3."""
    return _built_in("demo")


def federated_demo() -> Request:
    """The built-in federation: the digits over ten clients, one of them slow, asynchronously."""
    return _built_in("federated_demo")


def gossip_demo() -> Request:
    """The built-in gossip: the digits over eight workers, one of them slow."""
    return _built_in("gossip_demo")


def _built_in(name: str) -> Request:
    text = resources.files("forethought").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return Request(name, text, Job.parse(text, f"{name}.toml"))


def resumed(folder: Path) -> Request:
    """The job of a run folder, with what it had. Raises JobError when the folder holds none."""
    path = folder / JOB_NAME
    if not path.is_file():
        raise JobError(
            f"{folder} holds no interrupted run that can be resumed: there is no {JOB_NAME} in it"
        )
    # What was chosen for it is in the file: a run whose file says nothing is older.
    return replace(on_pixels(from_file(path)), name=folder.name)


def on_pixels(request: Request) -> Request:
    """The request without features of images that its file does not name."""
    job = request.job
    if job.data.features is not None or job.features is None:
        return request
    data = job.data.model_copy(update={"features": "pixels"})
    return replace(request, job=job.model_copy(update={"data": data}))


def with_features(request: Request, name: str) -> Request:
    """The request with the features that were taken in place of ``"auto"``, or of nothing said."""
    job = request.job
    if job.data.features == name:
        return request
    data = job.data.model_copy(update={"features": name})
    from forethought.data.features import reason_for  # loads torch

    settled = (*request.settled, f'features = "{name}": {reason_for(name)}')
    return replace(request, job=job.model_copy(update={"data": data}), settled=settled)


def from_numbers(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    records_per_person: int | None = None,
    **training: Any,
) -> Request:
    """A request without data: a budget and keys of a job's ``[training]``; None is left out.

    Raises:
        JobError: an unknown key or a value that is not allowed.
    """
    tables = {
        "data": without_none({"source": "none", "records_per_person": records_per_person}),
        "budget": without_none({"epsilon": epsilon, "delta": delta}),
        "training": without_none(training),
    }
    return Request("", "", _validated(tables))


def overridden(request: Request, flags: Mapping[str, Any]) -> Request:
    """The request with flags in place of what its file says, each change in words.

    Args:
        flags: keys of ``[budget]`` and ``[training]``; None is left out. A length takes the place
            of the other way to give it.

    Raises:
        JobError: a value that is not allowed.
    """
    tables = request.job.model_dump(exclude_unset=True)
    changes = []
    for key, value in without_none(flags).items():
        section = tables.setdefault("budget" if key in _BUDGET else "training", {})
        old = section.get(key)
        instead = section.pop(_INSTEAD[key], None) if key in _INSTEAD else None
        section[key] = value
        if instead is not None:
            changes.append(f"{key} {value} in place of {_INSTEAD[key]} {instead}")
        elif old is None:
            changes.append(f"{key} {value}, which the file leaves out")
        elif old != value:
            changes.append(f"{key} {value} in place of {old}")
    if not changes:
        return request
    return replace(request, job=_validated(tables), overrides=(*request.overrides, *changes))


def paying(request: Request, ledger: str | None) -> Request:
    """The request with another book than its file's.

    Args:
        ledger: its address, with ``#`` and the account's name where the file names none.

    Raises:
        JobError: no account is named.
    """
    if ledger is None:
        return request
    url, _, data = ledger.partition("#")
    tables = request.job.model_dump(exclude_unset=True)
    section = tables.setdefault("ledger", {})
    section["url"] = url if "://" in url else f"sqlite:///{url}"
    if data:
        section["data"] = data
    if "data" not in section:
        raise JobError(
            f"--ledger {ledger} names no account: add it behind #, as in {url}#patients, or give "
            "[ledger] data in the job"
        )
    change = f"paid by {section['data']!r} in {section['url']}"
    return replace(request, job=_validated(tables), overrides=(*request.overrides, change))


def _validated(tables: Mapping[str, Any]) -> Job:
    try:
        return Job.model_validate(tables)
    except ValidationError as error:
        raise JobError(explain_errors("", "", error.errors(), Job)) from None

"""Every option, as it is taken today: the job file's keys, the keywords of a plan, the flags.

``options.json`` beside this file holds what each takes of a list of values, what it becomes and
what is refused. ``python tests/jobs/test_options.py`` writes it anew, where a change is meant.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from dataclasses import MISSING, fields
from importlib.machinery import SourceFileLoader
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel, ValidationError

from forethought.jobs.job import Job, JobError, from_numbers
from forethought.options import keys, table
from forethought.planning.plan_request import PlanRequest

KEPT = Path(__file__).with_name("options.json")
EXAMPLES = 1000
NUMBERS = (-1, 0, 1, 2, 7, 5000, 10**8, -0.5, 0.0, 1e-300, 1e-9, 0.4, 0.5, 1.0, 12.5, 1e9)
ODD = (float("nan"), float("inf"), True, False, "", "nothing known", "2", [], [1.0], [1.0, 2.0], {})
NAMES = (
    *("gaussian", "grid", "correlated", "constant", "geometric", "linear", "forgetting", "power"),
    *("poisson", "without-replacement", "shuffled", "random-allocation", "cyclic-poisson"),
    *("full-batch", "add-or-remove", "zero-out", "replace-one", "example", "group", "flat"),
    *("automatic", "per-layer", "quantile", "sgd", "adam", "better", "contribution", "mirror"),
    *("low-pass", "kalman", "inverse", "inverse-sqrt", "cosine", "drops", "rounds", "examples"),
    *("none", "exponential", "tail", "private", "quantiles", "auto", "pixels", "scattering"),
    *("classification", "regression", "multilabel", "refuse", "middle", "category", "avg"),
    *("synchronous", "asynchronous", "allreduce", "size", "equal", "mean", "complete", "ring"),
    *("matchings", "one", "sqrt", "I", "II", "III", "average", "own", "all", "iid", "updates"),
    *("weights",),
)
PROBES: tuple[Any, ...] = (*NUMBERS, *ODD, *NAMES)


def sections() -> dict[str, type[BaseModel]]:
    """Each table of a job file that has keys of its own, by name."""
    found = {}
    for name, field in Job.model_fields.items():
        if name == "statistics":  # sections whose keys are those of their kind
            continue
        kinds = [field.annotation, *get_args(field.annotation)]
        found[name] = next(
            kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
        )
    return found


def asked(section: str, key: str, value: object) -> dict[str, Any]:
    """A job's tables with one key given."""
    tables: dict[str, Any] = {"data": {"source": "digits"}}
    tables.setdefault(section, {})[key] = value
    return tables


def taken(value: object, found: object) -> str:
    """A value that was taken and what it became, where that is another."""
    return repr(value) if repr(found) == repr(value) else f"{value!r} as {found!r}"


def job_keys() -> dict[str, dict[str, Any]]:
    """Each key of a job file: its default and the values that it takes."""
    found = {}
    for section, kind in sections().items():
        for key, field in kind.model_fields.items():
            accepted = []
            for value in PROBES:
                try:
                    job = Job.model_validate(asked(section, key, value))
                except ValidationError:
                    continue
                accepted.append(taken(value, getattr(getattr(job, section), key)))
            found[f"{section}.{key}"] = {"default": repr(field.default), "taken": accepted}
    return found


def keywords() -> dict[str, dict[str, Any]]:
    """Each keyword of a plan: its default, the values that it takes, and the words to others."""
    found = {}
    for field in fields(PlanRequest):
        accepted: list[str] = []
        refused: dict[str, list[str]] = {}
        for value in PROBES:
            try:
                request = PlanRequest.of(**{"examples": EXAMPLES, field.name: value})
            except (TypeError, ValueError) as error:
                words = f"{type(error).__name__}: {error}".replace(repr(value), "<value>")
                refused.setdefault(words, []).append(repr(value))
                continue
            accepted.append(taken(value, getattr(request, field.name)))
        default = "required" if field.default is MISSING else repr(field.default)
        found[field.name] = {"default": default, "taken": accepted, "refused": refused}
    return found


def flags() -> dict[str, dict[str, str]]:
    """Each command's arguments and options: how they are written, and their default."""
    import typer.main

    from forethought.cli import app

    found: dict[str, dict[str, str]] = {}

    def enter(command: Any, name: str) -> None:
        for inner, below in getattr(command, "commands", {}).items():
            enter(below, f"{name} {inner}".strip())
        if command.callback is not None:
            signature = inspect.signature(command.callback).parameters
            found[name] = {
                given.name: f"{' '.join((*given.opts, *given.secondary_opts))} = "
                f"{signature[given.name].default!r}"
                for given in command.params
                if given.name in signature
            }

    enter(typer.main.get_command(app), "")
    return found


def today() -> dict[str, Any]:
    """All of it."""
    return {"keys": job_keys(), "keywords": keywords(), "flags": flags()}


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """What was written down."""
    return dict(json.loads(KEPT.read_text(encoding="utf-8")))


def test_every_key_of_a_job_takes_what_it_took(kept: dict[str, Any]) -> None:
    assert job_keys() == kept["keys"]


def test_every_keyword_of_a_plan_takes_what_it_took_and_refuses_in_the_same_words(
    kept: dict[str, Any],
) -> None:
    assert keywords() == kept["keywords"]


def test_every_flag_is_written_as_it_was(kept: dict[str, Any]) -> None:
    assert flags() == kept["flags"]


def test_a_keyword_and_its_key_under_training_have_one_default_and_the_same_names() -> None:
    found, section = {field.name: field for field in fields(PlanRequest)}, sections()["training"]
    kinds = get_type_hints(PlanRequest)
    # A job gives the fields of these two as keys of their own: decay, averaging_decay, ...
    shared = (set(found) & set(section.model_fields)) - {"schedule", "averaging"}
    assert len(shared) == 30
    for name in shared:
        assert section.model_fields[name].default == found[name].default, name
        assert words_of(section.model_fields[name].annotation) == words_of(kinds[name]), name


def test_what_an_editor_shows_of_a_keyword_is_what_the_request_takes() -> None:
    stub = Path(str(files("forethought").joinpath("keywords.pyi")))
    shown = get_type_hints(loaded("stub", stub).PlanKeywords)
    kinds = get_type_hints(PlanRequest)
    assert {name: shown[name] for name in kinds} == kinds
    assert set(shown) == {*kinds, "data", "model", "shape"}


def test_what_is_generated_from_the_table_is_what_it_says() -> None:
    generated = loaded("generated", Path(__file__).parents[2] / "tools" / "options.py")
    for file, text in generated.files().items():
        assert file.read_text("utf-8") == text, "run python tools/options.py"


def test_every_range_of_the_table_is_refused_at_its_ends_alike_in_files_and_in_python() -> None:
    beyond = {"above": 0.0, "least": -1e-3, "below": 0.0, "most": 1e-3}
    for name, option in keys("training").items():
        if option.kind not in (int, float) or name not in table():
            continue
        for end, value in option.range.items():
            wrong: float = value + beyond[end] * max(1.0, abs(value))
            wrong = round(value + math.copysign(1, beyond[end])) if option.kind is int else wrong
            with pytest.raises(ValueError, match=name):
                PlanRequest.of(**{"examples": EXAMPLES, name: wrong})
            with pytest.raises(ValidationError, match=name):
                Job.model_validate(asked("training", name, wrong))


def loaded(name: str, path: Path) -> Any:
    """A file of Python, as a module."""
    loader = SourceFileLoader(name, str(path))
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def words_of(kind: object) -> tuple[object, ...]:
    """The names that a type allows, in order, whatever else it allows."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(word for part in get_args(kind) for word in words_of(part))


@pytest.mark.parametrize("section", ["budget", "training", "run"])
def test_a_refused_key_is_named_with_its_table(section: str) -> None:
    for key in sections()[section].model_fields:
        text = f'[data]\nsource = "digits"\n[{section}]\n{key} = [[]]\n'
        with pytest.raises(JobError) as refused:
            Job.parse(text, "job.toml")
        assert f"line 4: {section}.{key}" in str(refused.value)


def test_a_misspelt_keyword_key_and_flag_are_answered_with_the_nearest() -> None:
    with pytest.raises(TypeError) as keyword:
        PlanRequest.of(**{"examples": EXAMPLES, "sampling_": "poisson"})
    with pytest.raises(JobError) as key:
        Job.parse('[data]\nsource = "digits"\n[training]\nsampling_ = "poisson"\n', "job.toml")
    with pytest.raises(JobError) as number:
        from_numbers(epsilon=1.0, sampling_="poisson")
    for refused in (keyword, key, number):
        assert "did you mean" in str(refused.value)
        assert "sampling" in str(refused.value).partition("did you mean")[2]


if __name__ == "__main__":
    text = json.dumps(today(), indent=0, ensure_ascii=False, sort_keys=True)
    KEPT.write_text(text + "\n", encoding="utf-8")

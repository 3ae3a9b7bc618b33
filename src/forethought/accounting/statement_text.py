"""A Statement in words: three sentences, and the page for a data-protection officer."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from forethought.accounting.interval import at_least, at_most
from forethought.accounting.releases import rows
from forethought.mechanism import Correlated, Rounds
from forethought.samplings import Sampling

if TYPE_CHECKING:
    from forethought.accounting.statement import Statement

_PROTECTED = {
    "add-or-remove": "whether any one record is present in the training data at all (with a group, "
    "whether all of its records are present or none)",
    "zero-out": "any one record, against the same data with that record blanked out",
    "replace-one": "any one record, against the same data with that record replaced by any other",
}
# The first words of a statement without a guarantee.
_BROKEN = {
    "no-noise": "No noise was added: this model is not differentially private.",
    "seeded-noise": "Not private: seeded.",
    "seeded-search": "Not private: seeded.",
}
_MOST_PARTS = 20


def records(statement: Statement) -> str:
    """Whom ε is about: "one record" or "any 3 records together"."""
    return "one record" if statement.group == 1 else f"any {statement.group} records together"


def protected(statement: Statement) -> str:
    """What the neighbours of the data are that cannot be told apart."""
    who = "" if statement.group == 1 else f", for {records(statement)}"
    return _PROTECTED[statement.adjacency] + who


def sentences(statement: Statement) -> tuple[str, str, str]:
    """The guarantee in three plain sentences: what, what it means, what it does not cover."""
    if not statement.private:
        return _not_private(statement)
    who = records(statement)
    what = "This model is" if statement.releases else "A model from these rounds would be"
    first = (
        f"{what} ({at_most(statement.epsilon.upper)}, {at_most(statement.delta, '.3g')})-"
        f"differentially private for {who} ({statement.adjacency}), proven for "
        f"{statement.way.covered}."
    )
    rate, power = statement.attack[min(1, len(statement.attack) - 1)]
    second = (
        f"An attacker who wants to tell whether {who} was used, who knows everything but "
        f"{statement.way.unknown(statement.mechanism)}, and who accepts {rate:.1%} false alarms, "
        f"succeeds at most {at_most(power, '.1%')} of the time."
    )
    count = len(statement.not_covered)
    third = f"It rests on {len(statement.assumptions)} stated assumptions" + (
        f" and does not cover {count} named {'use' if count == 1 else 'uses'} of the "
        "data: read them in statement.md."
        if count
        else ", listed in statement.md, and names no use of the data outside it."
    )
    return first, second, third


def _not_private(statement: Statement) -> tuple[str, str, str]:
    causes = statement.breaks
    code = causes[0].code if causes else "no-noise"
    if code == "no-noise":
        return (
            _BROKEN[code],
            "An attacker who sees it may learn anything about any record.",
            "Train with a budget or a noise multiplier to get a guarantee.",
        )
    why = "; ".join(map(str, causes))
    first = f"{_BROKEN.get(code, 'Not private.')} {why[:1].upper()}{why[1:]}."
    if math.isfinite(statement.epsilon.upper):
        second = (
            f"With random numbers that nobody can draw again, the same rounds would have "
            f"ε = {at_most(statement.epsilon.upper)} at δ = {at_most(statement.delta, '.3g')}; "
            "this model has not."
        )
    else:
        second = "An attacker who sees it may learn anything about any record."
    return first, second, "Train again without a seed to get a guarantee."


def _clipped(part: Rounds) -> str:
    return part.clipping if part.groups is None else f"{part.clipping} ({part.groups:,} a round)"


def _sampling(sampling: Sampling) -> str:
    values = {name: value for name, value in vars(sampling).items() if value is not None}
    if not values:
        return sampling.words()
    shown = ", ".join(
        f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int) else f"{name} {value:.6g}"
        for name, value in values.items()
    )
    return f"{sampling.kind.replace('-', ' ')} ({shown})"


def _noise(part: Rounds) -> str:
    if not isinstance(part, Correlated):
        return f"{part.noise_multiplier:.6g}"
    return f"{part.noise_multiplier:.6g}, correlated over rounds ({part.strategy.words()})"


def _numbers(statement: Statement) -> list[str]:
    s = statement
    upper = "ε (upper end: the guarantee)"
    if not s.private:
        upper = "ε that secret random numbers would have given (no guarantee)"
    return [
        "| quantity | value |",
        "| --- | --- |",
        f"| {upper} | {at_most(s.epsilon.upper, '.6g')} |",
        f"| ε (lower end: how tightly it is computed) | {at_least(s.epsilon.lower, '.6g')} |",
        f"| δ | {at_most(s.delta, '.6g')} |",
        f"| adjacency | {s.adjacency} |",
        f"| records protected together | {s.group} |",
        f"| records in the data | {'not stated' if s.examples is None else f'{s.examples:,}'} |",
        f"| clip norm | {'not stated' if s.clip_norm is None else f'{s.clip_norm:g}'} |",
        f"| {s.way.rounds} | {len(s.mechanism):,} |",
        f"| accountant | {s.accountant['kind']}, forethought {s.version} |",
    ]


def _done(statement: Statement) -> list[str]:
    s = statement
    lines = []
    if s.releases:
        lines += ["| released | times | noise multiplier |", "| --- | --- | --- |"]
        lines += [f"| {name} | {count:,} | {noise} |" for name, count, noise in rows(s.releases)]
    else:
        lines.append("Nothing is known to have been released: this is the statement of a plan.")
    lines += [
        "",
        "| rounds | noise multiplier | sampling | clipped contribution |",
        "| --- | --- | --- | --- |",
    ]
    shown = s.mechanism.rounds[:_MOST_PARTS]
    lines += [
        f"| {part.count:,} | {_noise(part)} | {_sampling(part.sampling)} | {_clipped(part)} |"
        for part in shown
    ]
    if len(s.mechanism.rounds) > len(shown):
        lines.append(f"| … {len(s.mechanism.rounds) - len(shown)} more parts | | | |")
    lines.append("")
    lines += [f"{text}." for text in s.way.done(s.accountant)]
    lines += [f"Hyperparameters: {s.hyperparameters}."]
    return lines


def _meaning(statement: Statement) -> list[str]:
    if not statement.private:
        return []
    return [
        "## What they mean",
        "",
        "δ should be well below one over the number of records. Whatever test such an attacker "
        f"uses to tell whether {records(statement)} was used, this is the best they can do:",
        "",
        "| false alarms accepted | detections, at most |",
        "| --- | --- |",
        *(f"| {rate:.1%} | {at_most(power, '.2%')} |" for rate, power in statement.attack),
        "",
        "Guessing blindly gives as many detections as false alarms.",
        "",
    ]


def as_text(text: str) -> str:
    """What a person wrote, with nothing in it that a page would take for more than text."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text)


def markdown(statement: Statement) -> str:
    """The statement as a page."""
    s = statement
    lines = ["# Privacy statement", "", " ".join(s.sentences()), ""]
    if s.breaks:
        lines += ["## Why there is no guarantee", ""]
        lines += [f"- {text}: {text.kind.reason}." for text in s.breaks] + [""]
    if s.about is not None:
        lines += ["## What it is about", "", "As its owner says:", ""]
        lines += [f"- {what}: {as_text(text)}" for what, text in s.about.lines()] + [""]
    lines += [
        "## What is protected, and against whom",
        "",
        f"- Protected: {protected(s)}. If one person contributes more records, ask for the "
        "statement for a group of that size.",
        f"- The attacker {s.adversary}.",
        *(f"- {text[:1].upper()}{text[1:]}." for text in map(str, s.facts)),
        "",
        "## The numbers",
        "",
        *_numbers(s),
        "",
        *_meaning(s),
        "## What was done",
        "",
        *_done(s),
        "",
        "## What it rests on",
        "",
        *(f"- {text}." for text in s.assumptions),
        *(f"- Theorem: {text}" for text in s.theorems),
        "",
        "## What is not covered",
        "",
        *([f"- {text}." for text in s.not_covered] or ["- Nothing was named."]),
        "",
        "## Check it yourself",
        "",
        "`forethought account --verify statement.json` recomputes what follows from the mechanism "
        "in that file, and says what cannot be recomputed.",
    ]
    if s.signature is not None:
        lines += [
            "",
            f"Signed with the Ed25519 key {s.signature.fingerprint}; check it with "
            "`--public-key FILE` and the signer's public key.",
        ]
    return "\n".join([*lines, ""])

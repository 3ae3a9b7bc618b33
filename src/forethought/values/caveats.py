"""Caveats of a Statement: typed values, and one registry with the words of every kind.

A caveat is an assumption, a limit or another fact that a Statement prints beside its numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, get_args

from forethought.values.checks import settle
from forethought.values.serialisation import build

Role = Literal["breaks", "fact", "assumption", "not-covered", "choice"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Kind:
    """The role and the words of all caveats with one code.

    Args:
        role: ``"breaks"``: there is no guarantee at all. ``"fact"``: the accounting already
            includes it. ``"assumption"``: the guarantee rests on it. ``"not-covered"``: a use of
            private data outside the guarantee. ``"choice"``: how the plan's numbers were chosen.
        sentence: the printed words, without a full stop; ``{detail}`` stands for the detail.
        reason: why it matters, or the theorem or source behind it.
        earlier: the sentence in statements before schema 4, if it was different.
        statistics: the sentence on a page about statistics, if it is different.
    """

    role: Role
    sentence: str
    reason: str
    earlier: str = ""
    statistics: str = ""

    @property
    def detailed(self) -> bool:
        """True if a caveat of this kind needs a detail."""
        return "{detail}" in self.sentence


# The words are data beside this file. Statements print caveats of one role in this order.
KINDS: dict[str, Kind] = {
    code: Kind(**words)
    for code, words in tomllib.loads(
        files(__package__).joinpath("caveats.toml").read_text(encoding="utf-8")
    ).items()
}


def one_line(text: str) -> str:
    """The text without characters that could end a line or control a terminal.

    Unprintable white space becomes a space, other unprintable characters become U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else " " if one.isspace() else "\N{REPLACEMENT CHARACTER}"
        for one in text
    )


@dataclass(frozen=True)
class Caveat:
    """One assumption, limit or other fact that a reader of a Statement has to know.

    Args:
        code: a key of :data:`KINDS`.
        detail: the words that stand for ``{detail}`` in the sentence; "" where there is no such
            place. It is made one line by :func:`one_line`.

    Raises:
        ValueError: an unknown code, a detail that the sentence has no place for, or a missing one.
        TypeError: the detail is no text.

    >>> print(Caveat("classes-from-data", "no, yes"))
    the classes are those found in the training data: no, yes
    """

    code: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.code not in KINDS:
            raise ValueError(
                f"unknown caveat {self.code!r}: this version knows {', '.join(KINDS)}. Say it in "
                'words with Caveat("stated", "…")'
            )
        if not isinstance(self.detail, str):
            raise TypeError(f"the detail of a caveat must be text, not {self.detail!r}")
        if self.kind.detailed != bool(self.detail):
            wanted = "needs a detail" if self.kind.detailed else "takes no detail"
            raise ValueError(f"caveat {self.code!r} {wanted}: its sentence is {self.sentence!r}")
        settle(self, detail=one_line(self.detail))

    @property
    def kind(self) -> Kind:
        """The entry of this code in :data:`KINDS`."""
        return KINDS[self.code]

    @property
    def role(self) -> Role:
        """The caveat's effect on the guarantee; see :class:`Kind`."""
        return self.kind.role

    @property
    def sentence(self) -> str:
        """The printed words with the detail, without a full stop."""
        # Not str.format: other braces in a sentence are plain text.
        return self.kind.sentence.replace("{detail}", self.detail)

    def __str__(self) -> str:
        return self.sentence

    def __contains__(self, words: str) -> bool:
        """True if ``words`` are in the sentence."""
        return words in self.sentence

    def to_dict(self) -> dict[str, str]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        return {"code": self.code, "detail": self.detail}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Caveat:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: an unknown code or key.
        """
        return build(cls, values)


def caveat(value: Caveat | str) -> Caveat:
    """The caveat itself, or for a text the caveat with this sentence, else one of code "stated".

    Raises:
        TypeError: neither a caveat nor a text. ValueError: an empty text.
    """
    if isinstance(value, Caveat):
        return value
    if not isinstance(value, str):
        raise TypeError(f"a caveat is a Caveat or a sentence, not {type(value).__name__}")
    text = value.strip().removesuffix(".")
    known = _BY_SENTENCE.get(text)
    return Caveat("stated", text) if known is None else Caveat(known)


def caveats(values: Iterable[Caveat | str]) -> tuple[Caveat, ...]:
    """Each value as a :class:`Caveat`, once, in the order in which Statements print them.

    Raises:
        TypeError: one string or another thing instead of several, or a value that is no caveat.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"give several caveats, such as ('means of the columns',), not {values!r}")
    found = dict.fromkeys(caveat(value) for value in values)
    return tuple(sorted(found, key=lambda item: _ORDER[item.code]))


_THE_REST = "; the planner chose the rest from no data"


def chosen_but(given: Iterable[str]) -> Caveat:
    """The planner's words on its choice of a plan's numbers but the named ones, a user's own."""
    named = ", ".join(given)
    return Caveat("declared-as", named + _THE_REST) if named else Caveat("planned")


def still_chosen(before: Caveat) -> Caveat:
    """The choice of a plan's numbers after one of them was replaced: the planner's no longer."""
    own = before.code == "planned" or before.detail.endswith(_THE_REST)
    return Caveat("declared") if own else before


def choice(value: Caveat | str) -> Caveat:
    """The caveat of role "choice" for the choice of a plan's numbers.

    Args:
        value: such a caveat, or the user's words, which become "declared-as" unless they are the
            sentence of one.

    Raises:
        TypeError: neither a caveat nor a text. ValueError: a caveat of another role, no words.
    """
    found = caveat(value)
    if found.role == "choice":
        return found
    if isinstance(value, str):
        return Caveat("declared-as", found.sentence.removeprefix("as declared by the user: "))
    raise ValueError(f"caveat {found.code!r} does not say how hyperparameters were chosen")


def of_role(values: Iterable[Caveat], role: Role) -> tuple[Caveat, ...]:
    """The caveats of one role, in the given order."""
    return tuple(value for value in values if value.role == role)


_ORDER = {code: (ROLES.index(kind.role), place) for place, (code, kind) in enumerate(KINDS.items())}
# Sentence → code of the kinds without a detail, to recognise a caller's words.
_BY_SENTENCE = {kind.sentence: code for code, kind in KINDS.items() if not kind.detailed}

"""The assumptions and the limits of a guarantee: typed values, one registry of their words.

A :class:`Caveat` is a code and a detail. Code compares codes; what a person reads is the sentence
that the registry :data:`KINDS` holds for the code, and why it is said. A Plan and a Dataset carry
caveats to the Statement, which prints them in the registry's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forethought.caveat_kinds import KINDS, ROLES, Kind, Role
from forethought.serialisation import exact_keys


def one_line(text: str) -> str:
    """The text without what could end a line or steer a terminal.

    Other white space becomes a space, other characters without a shape U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else " " if one.isspace() else "\N{REPLACEMENT CHARACTER}"
        for one in text
    )


@dataclass(frozen=True)
class Caveat:
    """One thing that a reader of a Statement has to know.

    Args:
        code: a key of :data:`KINDS`.
        detail: what the sentence leaves open, in plain words; "" where it leaves nothing open.
            It becomes one line: see :func:`one_line`.

    Raises:
        ValueError: an unknown code, a detail where none belongs (or none where one does).

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
        object.__setattr__(self, "detail", one_line(self.detail))

    @property
    def kind(self) -> Kind:
        """The registry's entry."""
        return KINDS[self.code]

    @property
    def role(self) -> Role:
        """The caveat's effect on the guarantee; see :class:`Kind`."""
        return self.kind.role

    @property
    def sentence(self) -> str:
        """The words for a person, without a full stop."""
        # Not str.format: a detail may hold braces, and a sentence has no other place to fill.
        return self.kind.sentence.replace("{detail}", self.detail)

    def __str__(self) -> str:
        return self.sentence

    def __contains__(self, words: str) -> bool:
        """True if these words are in the sentence."""
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
        exact_keys("caveat", values, {"code", "detail"})
        return cls(values["code"], values["detail"])


def caveat(value: Caveat | str) -> Caveat:
    """A caveat as it is, or words as the caveat that they are the sentence of, or else "stated".

    Raises:
        TypeError: neither. ValueError: no words.
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
        TypeError: one string instead of several, or something that is no caveat.
    """
    if isinstance(values, str):
        raise TypeError(f"give several caveats, for example ({values!r},), not one string")
    found = dict.fromkeys(caveat(value) for value in values)
    return tuple(sorted(found, key=lambda item: _ORDER[item.code]))


def choice(value: Caveat | str) -> Caveat:
    """The choice of a plan's numbers: a caveat of that role, or the user's words for it.

    Raises:
        TypeError, ValueError: neither, or a caveat of another role.
    """
    if isinstance(value, str):
        text = value.strip().removesuffix(".")
        known = _BY_SENTENCE.get(text)
        if known is not None and KINDS[known].role == "choice":
            return Caveat(known)
        return Caveat("declared-as", text.removeprefix("as declared by the user: "))
    found = caveat(value)
    if found.role != "choice":
        raise ValueError(f"caveat {found.code!r} does not say how hyperparameters were chosen")
    return found


def of_role(values: Iterable[Caveat], role: Role) -> tuple[Caveat, ...]:
    """Those of one role, in their order."""
    return tuple(value for value in values if value.role == role)


_ORDER = {code: (ROLES.index(kind.role), place) for place, (code, kind) in enumerate(KINDS.items())}
# Sentences of those that need no detail, by which a caller's words are recognised.
_BY_SENTENCE = {kind.sentence: code for code, kind in KINDS.items() if not kind.detailed}

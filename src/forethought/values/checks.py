"""Checks of numbers, words, names and folders from outside, with errors in the user's terms."""

from __future__ import annotations

import difflib
import importlib
import math
import re
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from operator import ge, gt, index, le, lt
from pathlib import Path
from typing import Any, TypeVar

_Value = TypeVar("_Value")
_Kind = TypeVar("_Kind")
_BOUNDS = (("above", gt), ("at least", ge), ("below", lt), ("at most", le))
# Control characters but tab and newline, surrogates, and what turns the direction of later text.
_CONTROLS = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """The text with U+FFFD for each character that could control a terminal or hide other text."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """``value`` as a finite float inside the bounds; errors call it ``name``.

    Raises:
        TypeError: not a number. ValueError: not finite, or outside the bounds.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # several numbers, or a huge one
        number = math.nan
    wanted, holds = [], math.isfinite(number)
    for (word, keeps), bound in zip(_BOUNDS, (above, least, below, most), strict=True):
        if bound is not None:
            wanted.append(f"{word} {bound}")
            holds = holds and keeps(number, bound)
    if not holds:
        told = f"a finite number {' and '.join(wanted)}".rstrip()
        raise ValueError(f"{name} must be {told}, not {value!r}")
    return number


def reals(name: str, values: object, **bounds: float) -> tuple[float, ...]:
    """``values`` as finite floats inside the bounds of :func:`real`, each called ``name``.

    Raises:
        TypeError: no sequence, or not of numbers. ValueError: as of :func:`real`.
    """
    if not isinstance(values, Iterable):
        raise TypeError(f"each {name} is one of several: give a list of them, not {values!r}")
    return tuple(real(name, value, **bounds) for value in values)


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """``value`` as an integer inside the bounds; errors call it ``name``.

    Raises:
        TypeError: not a whole number. ValueError: outside the bounds.
    """
    try:
        number = index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:  # of an array too, whose values are not for a message
        raise TypeError(f"{name} must be a whole number, not {reprlib.repr(value)}") from None
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" + ("" if most is None else f" and at most {most}")
        raise ValueError(f"{name} must be {bounds}, not {number}")
    return number


def optional(read: Callable[..., _Value], name: str, value: object, **bounds: Any) -> _Value | None:
    """``read(name, value, **bounds)``, such as that of :func:`real`; None stays None."""
    return None if value is None else read(name, value, **bounds)


def instance(name: str, value: object, kind: type[_Kind]) -> _Kind:
    """The value; a TypeError if it is not of the public class that is asked for."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a forethought.{kind.__name__}, not {type(value).__name__}")
    return value


def require_parts(value: object, kinds: Mapping[str, type[Any]]) -> None:
    """Raise a TypeError if a field is not of its class; None will do where it is the default.

    Args:
        value: of a dataclass. kinds: name of a field → its class.
    """
    for name, kind in kinds.items():
        found, default = getattr(value, name), getattr(type(value), name, value)
        if not isinstance(found, kind) and not (found is None is default):
            raise TypeError(f"{name} must be of the class {kind.__name__}, not {found!r}")


def function(name: str, value: object) -> None:
    """Raise a TypeError if ``value`` is neither None nor something to call; classes are not."""
    if value is not None and (isinstance(value, type) or not callable(value)):
        raise TypeError(f"{name} must be a function, not {value!r}: give one, or leave it out")


def require_payer(ledger: object) -> None:
    """Check that a ledger is none or one that can pay.

    Raises:
        TypeError: it is something else, such as the text that names a book.
    """
    if ledger is not None and not hasattr(ledger, "paid"):
        raise TypeError(
            "ledger is a forethought.Ledger, such as ft.Ledger(book, account), not "
            f"{type(ledger).__name__}"
        )


def settle(value: object, **fields: object) -> None:
    """Set fields of a frozen dataclass in its ``__post_init__`` or ``__init__``."""
    for name, found in fields.items():
        object.__setattr__(value, name, found)


def described(
    name: str, kind: type[_Value], asked: Any, field_of_words: str, such: str
) -> _Value | None:
    """A dataclass from itself, from a mapping of some of its fields, or from words for one field.

    Args:
        name: of the option, for errors.
        asked: one of these; None stays None.
        field_of_words: the field that a word stands for, or a list of words if it is a tuple.
        such: the words, for errors.

    Raises:
        TypeError: another value. ValueError: an unknown field, or one that the dataclass refuses.
    """
    if asked is None or isinstance(asked, kind):
        return asked
    if isinstance(asked, Mapping):
        *others, last = known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        if unknown := ", ".join(map(repr, sorted(set(asked) - set(known)))):
            raise ValueError(f"{name} has {', '.join(others)} and {last}, not {unknown}")
        return kind(**asked)
    several = isinstance(getattr(kind, field_of_words), tuple) and not isinstance(asked, str)
    words = asked if several else [asked]
    if not isinstance(words, Sequence) or not all(isinstance(one, str) for one in words):
        raise TypeError(f"{name} must be {such} or a forethought.{kind.__name__}, not {asked!r}")
    return kind(**{field_of_words: asked})


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise a ValueError that names the choices if ``value`` is not in ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


# Names that other libraries, papers and configuration files have for ours.
_ELSEWHERE = {
    "batch": ("batch_size", "lot_size", "minibatch"),
    "budget": ("dp", "privacy"),
    "clip_norm": ("clip", "clipping_norm", "l2_norm_clip", "max_grad_norm", "max_norm"),
    "examples": ("n", "dataset_size", "records", "sample_size"),
    "label": ("outcome", "target", "y"),
    "learning_rate": ("lr", "step_size"),
    "mean": ("average",),
    "noise_multiplier": ("sigma",),
    "quantiles": ("median",),
    "rounds": ("iterations", "steps"),
    "source": ("csv", "dataset", "file", "name", "path"),
    "sum": ("total",),
}


def suggestion(name: str, known: Collection[str], form: str = "{!r}", homes: str = "") -> str:
    """A hint for an unknown name: the known name that is meant or most similar, or all of them.

    Args:
        form: format of that name in the text. homes: sections of a file that do have such a key.
    """
    near = [one for one, others in _ELSEWHERE.items() if name.lower() in others and one in known]
    if homes and not near:
        return f"it belongs in {homes}"
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {form.format(near[0])}?" if near else f"known: {', '.join(known)}"


def meant(name: str, known: Iterable[str]) -> str:
    """A sentence with the known name nearest to a wrong one, in any case of letters, or ``""``."""
    names = {one.strip().lower(): one for one in known}
    near = difflib.get_close_matches(name.strip().lower(), names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def frozen(options: Any) -> tuple[tuple[str, Any], ...]:
    """Options as pairs of name and value, from pairs or from a mapping; lists become tuples."""
    pairs = options.items() if isinstance(options, Mapping) else options
    return tuple(
        (str(name), tuple(value) if isinstance(value, list) else value) for name, value in pairs
    )


def without_none(values: Mapping[str, _Value | None]) -> dict[str, _Value]:
    """The entries whose value is not None."""
    return {name: value for name, value in values.items() if value is not None}


class RunFolderExistsError(ValueError):
    """The folder already holds something: resume it, overwrite it, or choose another."""


def require_only(folder: Path, *own: str) -> None:
    """Refuse a file, and a folder that holds anything but files of these names, or hidden ones.

    So nobody's results are replaced, and none lie beside those of something else.

    Raises:
        RunFolderExistsError: it is a file, or there is something else in it.
    """
    if folder.exists() and not folder.is_dir():
        raise RunFolderExistsError(f"{folder} is a file: give a folder")
    others = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if any(name not in own and not name.startswith(".") for name in others):
        raise RunFolderExistsError(f"{folder} is not empty: choose another folder")


def imported(what: str, name: str) -> Callable[..., Any]:
    """The user's function with the name ``module:function``.

    Args:
        what: the kind of function, for errors: "model".

    Raises:
        ValueError: a malformed name, a module that cannot be imported, or one without this
            function.
    """
    module_name, _, function = name.partition(":")
    if not module_name or not function:
        raise ValueError(f"a {what} of your own is named module:function, not {name!r}")
    try:
        with importable_from(Path.cwd()):
            module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(
            f"{what} {name!r}: importing {module_name} failed with {type(error).__name__}: "
            f"{error}. The module must be installed, or lie in the working directory or next to "
            "the job file"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        public = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(
            f"{what} {name!r}: {module_name} has no function {function!r}.{meant(function, public)}"
        )
    return found


@contextmanager
def importable_from(folder: Path) -> Iterator[None]:
    """Let imports find the user's modules in ``folder``, after all installed modules.

    A console script, unlike ``python -m``, does not look for modules in its working directory.
    """
    here = str(folder.resolve())
    if here in sys.path or ("" in sys.path and folder.resolve() == Path.cwd()):
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)

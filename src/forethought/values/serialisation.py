"""Values as JSON and back: exact keys, schema versions, one canonical text, atomic files.

A class of stored values inherits from :class:`Stored` and names its schema and the parts that are
no plain values. It overrides ``_values`` and ``_restore`` only where the defaults do not fit.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self, TypeVar

from forethought.values.checks import one_of

_Value = TypeVar("_Value")


def exact_keys(what: str, values: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Refuse unknown and missing keys; the error names both.

    Raises:
        TypeError: ``values`` is no mapping. ValueError: its keys differ from ``wanted``.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{what}: expected a JSON object, not {type(values).__name__}")
    unknown, missing = set(values) - set(wanted), set(wanted) - set(values)
    if unknown or missing:
        wrong = [f"unknown {sorted(unknown)}"] if unknown else []
        wrong += [f"missing {sorted(missing)}"] if missing else []
        raise ValueError(f"{what}: {', '.join(wrong)}; the keys are {sorted(wanted)}")


def plain(value: Any) -> Any:
    """``value`` as JSON types: dataclasses become dicts, tuples and arrays lists, ∞ "infinity".

    A value with a ``to_dict`` method becomes the result of that method.

    Raises:
        TypeError: a value that has no form in JSON. ValueError: NaN or −∞.
    """
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return entries(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        if value != math.inf:
            raise ValueError(f"{value} has no form in JSON here: only numbers and ∞ are stored")
        return "infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def entries(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, each as JSON types.

    Fields that its ``LATER`` names are left out while they have their default.
    """
    later = getattr(value, "LATER", ())
    return {
        field.name: plain(getattr(value, field.name))
        for field in fields(value)
        if field.name not in later or getattr(value, field.name) != field.default
    }


def parse(text: str) -> Any:
    """The values of a JSON text.

    Raises:
        ValueError: no JSON, a repeated key or a number that is not finite (two readers could
            understand these differently), or too deep nesting.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            times = Counter(name for name, _ in pairs)
            twice = sorted(name for name in times if times[name] > 1)
            raise ValueError(f"the JSON object names {', '.join(twice)} more than once")
        return values

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"the JSON holds {number[:40]}, which is no finite number")
        return value

    try:
        return json.loads(text, object_pairs_hook=once, parse_float=finite, parse_constant=finite)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from None


# Largest size, in bytes, of a JSON file from an untrusted source.
LARGEST = 1 << 24


@contextmanager
def opened_outside(path: Path, most: int) -> Iterator[io.BufferedReader]:
    """Open a file from an untrusted source for reading.

    Raises:
        OSError: no such file. ValueError: no ordinary file (a link, a pipe, a device, a folder), or
            more than ``most`` bytes.
    """
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink() or path.is_dir():
        raise ValueError(f"{path} is a link or a folder: only ordinary files are read")
    # Opening a pipe would block until somebody writes to it; O_NONBLOCK prevents that.
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | flags), "rb") as file:
        held = os.fstat(file.fileno())
        if not stat.S_ISREG(held.st_mode):
            raise ValueError(f"{path} is no ordinary file")
        if held.st_size > most:
            raise ValueError(f"{path} has {held.st_size:,} bytes, more than the {most:,} allowed")
        yield file


def read_outside(path: Path) -> str:
    """The text of a JSON file from an untrusted source; raises as :func:`opened_outside` does."""
    with opened_outside(path, LARGEST) as file:
        held = file.read(LARGEST + 1)
    if len(held) > LARGEST:
        raise ValueError(f"{path} has more than the {LARGEST:,} bytes allowed")
    try:
        return held.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None


def build(kind: type[_Value], values: Mapping[str, Any], what: str | None = None) -> _Value:
    """A dataclass from a mapping with exactly its fields; those of ``LATER`` may be missing.

    Args:
        what: the value's name in errors; None: the name of the class.

    Raises:
        ValueError: an unknown or a missing key, or values that the dataclass refuses.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    absent = {name for name in getattr(kind, "LATER", ()) if name not in values}
    exact_keys(what or kind.__name__.lower(), values, names - absent)
    return kind(**values)


# Field of a stored value → function that reads its JSON value.
Readers = Mapping[str, Callable[[Any], Any]]


def each(read: Callable[[Any], _Value]) -> Callable[[Iterable[Any]], tuple[_Value, ...]]:
    """A function that reads a list, each value by ``read``, for :attr:`Stored.PARTS`."""
    return lambda values: tuple(map(read, values))


def tagged(value: Any) -> dict[str, Any]:
    """The fields of a dataclass and its ``kind``; :func:`of_kind` reads them back."""
    return {"kind": value.kind, **entries(value)}


def of_kind(kinds: Mapping[str, type[_Value]], values: Mapping[str, Any], what: str) -> _Value:
    """The inverse of :func:`tagged`.

    Args:
        kinds: name → dataclass. what: the value's name in errors.

    Raises:
        TypeError: ``values`` is no mapping. ValueError: an unknown kind, or values that
            :func:`build` refuses.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a JSON object with its kind, not {values!r}")
    known = dict(values)
    kind = known.pop("kind", None)
    one_of(f"{what} kind", kind, tuple(kinds))
    return build(kinds[kind], known, f"{what} {kind!r}")


def canonical(values: Any) -> str:
    """The canonical JSON text, independent of the order of keys, for hashes and signatures."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(values: Any) -> str:
    """The SHA-256 of the canonical text, in hexadecimal, after the prefix ``sha256:``."""
    return "sha256:" + hashlib.sha256(canonical(values).encode()).hexdigest()


@contextmanager
def replaced(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A context that writes a file atomically: after a crash the old file is still there."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(part, flags, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in ``folder`` durable, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file for its owner only. Raises OSError: it exists, or cannot be made."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replaced(path) as file:
        file.write(text.encode())


class Stored:
    """A frozen dataclass that is stored as a JSON object with a schema.

    A subclass sets :attr:`SCHEMA` and :attr:`CALLED`, and :attr:`PARTS` where its fields are not
    plain numbers and words. The JSON object has a key for every field and ``schema``; fields in
    :attr:`LATER` are left out while they have their default.
    """

    #: "forethought/NAME/VERSION".
    SCHEMA: ClassVar[str]
    #: The name of the value in errors: "plan".
    CALLED: ClassVar[str]
    #: Fields that are newer than the schema's version.
    LATER: ClassVar[tuple[str, ...]] = ()
    #: Field → function that reads its JSON value, for fields that are no plain values.
    PARTS: ClassVar[Readers] = {}

    def _values(self) -> dict[str, Any]:
        """The JSON object without its schema."""
        return entries(self)

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Self:
        """The inverse of :meth:`_values`; the keys have been checked."""
        parts = {name: read(values[name]) for name, read in cls.PARTS.items()}
        return cls(**{**values, **parts})

    @classmethod
    def _keys(cls) -> set[str]:
        return {field.name for field in fields(cls)}  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        return {"schema": self.SCHEMA, **self._values()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`.

        Raises:
            TypeError: ``values`` is no mapping. ValueError: another schema version, an unknown or a
                missing key.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"no {cls.CALLED}: expected a JSON object, not {type(values).__name__}")
        later = {
            field.name: field.default
            for field in fields(cls)  # type: ignore[arg-type]
            if field.name in cls.LATER
        }
        known = {**later, **values}
        if (schema := known.pop("schema", None)) != cls.SCHEMA:
            raise ValueError(
                f"no {cls.CALLED} that this version can read: schema {schema!r}, expected "
                f"{cls.SCHEMA!r}"
            )
        exact_keys(cls.CALLED, known, cls._keys())
        return cls._restore(known)

    def to_json(self) -> str:
        """One JSON object; :meth:`from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: no JSON, or values that :meth:`from_dict` refuses.
        """
        return cls.from_dict(parse(text))

    def save(self, path: str | Path) -> None:
        """Write the value as JSON, atomically; :meth:`load` reads it back."""
        write_text(Path(path), self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            OSError: no such file. ValueError: the file holds no such value; the message names it.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"{path} holds no {cls.CALLED}: {error}") from error

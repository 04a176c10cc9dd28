"""The stored form of frozen dataclasses: JSON values, derived from the annotations of their fields. Pure.

A dataclass is an object of its fields, a tuple a list; where an annotation allows several dataclasses, the class's name stands
under "kind". A field that has its default is left out and gets the default when it is read: so a default keeps its meaning for
good, and what a new field means without a value is what earlier records meant. Names of classes and fields are part of the form.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from reprlib import repr as repr_short
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

T = TypeVar("T")
_KIND: Final = "kind"


class MalformedRecord(ValueError):
    """What is stored cannot be read by this version; the text says which field is wrong."""


class Codec(NamedTuple):
    """How values of an annotation are written and read.

    `read` raises ValueError for a value of another type, and MalformedRecord, which is one, where it can say more.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


class StoredForm(Generic[T]):
    """The stored form of the dataclass `kind`. `known`: the codecs of annotations that are not derived."""

    def __init__(self, kind: type[T], known: Mapping[Any, Codec] | None = None) -> None:
        hints = typing.get_type_hints(kind)
        self._kind = kind
        self._fields = tuple(
            (each.name, _default(each), _codec(hints[each.name], known or {})) for each in fields(cast(Any, kind))
        )
        self._readers = {name: codec.read for name, _, codec in self._fields}

    def write(self, value: T, *, whole: bool = False) -> dict[str, Any]:
        """The value as JSON values; `whole`: also the fields that have their defaults."""
        written = {}
        for name, default, codec in self._fields:
            each = getattr(value, name)
            if whole or (each is not default and each != default):
                written[name] = codec.write(each)
        return written

    def read(self, raw: Mapping[str, Any]) -> T:
        """The inverse of `write`. Raises MalformedRecord."""
        values: dict[str, Any] = {}
        for name, value in raw.items():
            if name not in self._readers:
                raise MalformedRecord(f"{self._kind.__name__} has no field {name!r}")
            try:
                values[name] = self._readers[name](value)
            except MalformedRecord:
                raise
            except ValueError as error:
                raise MalformedRecord(f"{self._kind.__name__}.{name} is {repr_short(value)}") from error
        try:
            return self._kind(**values)
        except TypeError as error:
            raise MalformedRecord(str(error)) from error


def form_of(kind: type[T]) -> StoredForm[T]:
    """The form of a dataclass, made once: a node has hundreds of records. Raises TypeError for one that has none."""
    return cast("StoredForm[T]", _made_once(cast(Any, kind)))


@cache
def _made_once(kind: type[Any]) -> StoredForm[Any]:
    return StoredForm(kind)


def _default(item: Field[Any]) -> object:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _as_it_is(value: Any) -> Any:
    return value


def _codec(hint: Any, known: Mapping[Any, Codec]) -> Codec:
    """The codec of an annotation. Raises TypeError for one that has no stored form."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in known:
        return known[hint]
    if hint is Any:
        return Codec(_as_it_is, _as_it_is)
    if hint in (str, int, float, bool):
        return Codec(_as_it_is, _required(lambda value: type(value) is hint))
    if origin is Literal:
        return Codec(_as_it_is, _required(lambda value: isinstance(value, str) and value in arguments))
    if origin is tuple and arguments[1:] == (...,):
        return _of_tuple(_codec(arguments[0], known))
    if origin is not None and origin is not types.UnionType and issubclass(origin, Mapping) and arguments[0] is str:
        return _of_mapping(_codec(arguments[1], known))
    if origin is types.UnionType and types.NoneType in arguments and len(arguments) == 2:
        return _optional(_codec(next(each for each in arguments if each is not types.NoneType), known))
    if origin is types.UnionType and all(map(is_dataclass, arguments)):
        return _one_of({each.__name__: form_of(each) for each in arguments})
    if isinstance(hint, type) and is_dataclass(hint):
        form = form_of(hint)
        return Codec(form.write, lambda value: form.read(_object(value)))
    raise TypeError(f"no stored form of {hint}")


def _required(holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError
        return value

    return read


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - of a value, as all that is read
    return value


def _of_tuple(each: Codec) -> Codec:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError  # noqa: TRY004
        return tuple(map(each.read, value))

    return Codec(list if each.write is _as_it_is else lambda value: list(map(each.write, value)), read)


def _of_mapping(each: Codec) -> Codec:
    def write(value: Mapping[str, Any]) -> dict[str, Any]:
        return {key: each.write(item) for key, item in value.items()}

    return Codec(
        dict if each.write is _as_it_is else write,
        lambda value: {key: each.read(item) for key, item in _object(value).items()},
    )


def _optional(each: Codec) -> Codec:
    return Codec(
        lambda value: None if value is None else each.write(value), lambda value: None if value is None else each.read(value)
    )


def _one_of(forms: Mapping[str, StoredForm[Any]]) -> Codec:
    """Of several dataclasses, told apart by name."""

    def write(value: Any) -> dict[str, Any]:
        name = type(value).__name__
        return {_KIND: name, **forms[name].write(value)}

    def read(value: Any) -> Any:
        name = _object(value).get(_KIND)
        if not isinstance(name, str) or name not in forms:
            raise ValueError
        return forms[name].read({key: item for key, item in value.items() if key != _KIND})

    return Codec(write, read)

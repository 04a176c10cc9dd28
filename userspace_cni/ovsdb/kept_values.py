"""How a replica keeps the values of a row's columns: as plain values of Python, which are read from messages at a fraction of
what ovs.db.idl takes for its own form, a Datum with an Atom for each member.

A map is kept as a dict, a set or an optional value as a frozenset, any other value as itself; none is ever changed in place.
Code of ovs.db.idl and ovsdbapp, which asks a row for Datums, gets one made for each look.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import ovs.db.data
import ovs.db.error
import ovs.db.types
from ovs.db import idl as ovs_idl

Reader = Callable[[Any], Any]
"""The value of a column as a message has it (RFC 7047, 5.1) to that which is kept. Raises ovs.db.error.Error."""
Changer = Callable[[Any, Any], Any]
"""A kept value and a difference to the value after it."""

_PLAIN: Final[Mapping[Any, type]] = {
    ovs.db.types.StringType: str,
    ovs.db.types.IntegerType: int,
    ovs.db.types.BooleanType: bool,
}
_TEXTS: Final = frozenset({str})


class KeptColumns(ovs_idl.ColumnDefaultDict):  # type: ignore[misc]
    """The columns of one row that do not have their defaults. An item is a Datum, as ovs.db.idl wants it; `dict.get` gives what
    is kept."""

    __slots__ = ()

    def __getitem__(self, column: str) -> Any:
        kind, value = self._table.columns[column].type, dict.get(self, column)
        return as_datum(kind, default_of(kind) if value is None else value)


def default_of(kind: Any) -> Any:
    """What a column of this type has unless it is written."""
    if kind.is_map():
        return {}
    return kind.key.type.default if kind.is_scalar() else frozenset()


def as_datum(kind: Any, value: Any) -> Any:
    """A kept value in the form of ovs.db.idl."""
    atom, key = ovs.db.data.Atom, kind.key.type
    if kind.is_map():
        return ovs.db.data.Datum(kind, {atom(key, each): atom(kind.value.type, of) for each, of in value.items()})
    members = (value,) if kind.is_scalar() else sorted(value)
    return ovs.db.data.Datum(kind, {atom(key, each): None for each in members})


def changer_of(kind: Any) -> Changer:
    """What a column's value becomes by the difference that a message tells (ovsdb-server(7), 4.1.14): members of both go."""
    if not kind.is_composite():
        return _replace
    return _merge_maps if kind.is_map() else frozenset.__xor__


def _replace(_: Any, now: Any) -> Any:
    return now


def _merge_maps(before: dict[str, Any], difference: dict[str, Any]) -> dict[str, Any]:
    changed = dict(before)
    for key, value in difference.items():
        if changed.get(key) == value:
            del changed[key]
        else:
            changed[key] = value
    return changed


def reader_of(kind: Any) -> Reader:
    """How values of a column of this type are read."""

    def read_slowly(told: Any) -> Any:
        return _kept_of(kind, ovs.db.data.Datum.from_json(kind, told))

    if _is_bounded(kind.key) or (kind.value is not None and _is_bounded(kind.value)):
        return read_slowly
    if kind.is_map():
        return _texts(kind, read_slowly) if kind.is_smap() else read_slowly
    if kind.key.type == ovs.db.types.UuidType:
        return _reference(read_slowly) if kind.is_scalar() else _references(kind, read_slowly)
    plain = _PLAIN.get(kind.key.type)
    if plain is None:
        return read_slowly
    return _scalar(plain, read_slowly) if kind.is_scalar() else _members(kind, plain, read_slowly)


def _is_bounded(base: Any) -> bool:
    """Whether not every value of its type is allowed."""
    bounds = (base.enum, base.min, base.max)
    return any(each is not None for each in bounds) or base.min_length > 0 or base.max_length < sys.maxsize


def _kept_of(kind: Any, datum: Any) -> Any:
    if kind.is_map():
        return {key.value: value.value for key, value in datum.values.items()}
    members = frozenset(key.value for key in datum.values)
    return next(iter(members)) if kind.is_scalar() else members


def _scalar(plain: type, otherwise: Reader) -> Reader:
    return lambda told: told if type(told) is plain else otherwise(told)


def _members(kind: Any, plain: type, otherwise: Reader) -> Reader:
    types, least, most = frozenset({plain}), kind.n_min, kind.n_max

    def read(told: Any) -> Any:
        if type(told) is plain:
            return frozenset((told,))
        try:
            tag, members = told
            found = frozenset(members)
        except (TypeError, ValueError):
            return otherwise(told)
        good = (
            tag == "set"
            and type(members) is list
            and least <= len(found) == len(members) <= most
            and types.issuperset(map(type, found))
        )
        return found if good else otherwise(told)

    return read


def _texts(kind: Any, otherwise: Reader) -> Reader:
    least, most = kind.n_min, kind.n_max

    def read(told: Any) -> Any:
        try:
            tag, pairs = told
            found = dict(pairs)
        except (TypeError, ValueError):
            return otherwise(told)
        good = tag == "map" and least <= len(found) == len(pairs) <= most
        good = good and _TEXTS.issuperset(map(type, found)) and _TEXTS.issuperset(map(type, found.values()))
        return found if good else otherwise(told)

    return read


def _reference(otherwise: Reader) -> Reader:
    def read(told: Any) -> Any:
        try:
            tag, text = told
            return uuid.UUID(text) if tag == "uuid" else otherwise(told)
        except (TypeError, ValueError, AttributeError):
            return otherwise(told)

    return read


def _references(kind: Any, otherwise: Reader) -> Reader:
    least, most, one = kind.n_min, kind.n_max, _reference(otherwise)

    def read(told: Any) -> Any:
        try:
            tag, members = told
            if tag == "uuid":
                return frozenset((uuid.UUID(members),))
            found = frozenset(map(one, members))
        except (TypeError, ValueError, AttributeError, ovs.db.error.Error):
            return otherwise(told)
        return found if tag == "set" and least <= len(found) == len(members) <= most else otherwise(told)

    return read

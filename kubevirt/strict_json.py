"""JSON as RFC 8259 has it and nobody can misread it, out of annotations and of files that others write. Pure.

Refused is what Python's parser lets pass and another reader would take differently: NaN and infinities, a key given twice, half
of a surrogate pair, nesting without end. Messages say what the text is of and what is wrong, and never quote more than a few
words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from kubevirt.errors import BadInput

BYTES_MAX: Final = 1 << 20
"""More than any of these texts can have: all annotations of one object together have 256 KiB at most."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DIGITS_MAX: Final = 32
_DEEPEST: Final = 64
_BLANK: Final = " \t\r\n"
_NAMES: Final = {dict: "an object", list: "a list", str: "a string", int: "a whole number", float: "a number", bool: "a boolean"}

T = TypeVar("T")


def decode(text: bytes | str, what: str, remedy: str) -> Any:
    """The one value of `text`. `what` names the text in messages, as "network-info"; BadInput carries `remedy`."""
    values = list(decode_stream(text, what, remedy))
    if len(values) != 1:
        raise BadInput(f"{what} holds {len(values)} JSON values: it must hold one", remedy)
    return values[0]


def decode_stream(text: bytes | str, what: str, remedy: str) -> Iterator[Any]:
    """Values that follow one another, with white space or nothing between them, as Kubernetes writes versioned files."""
    content = _unicode(text, what, remedy)
    position = _after_blanks(content, 0)
    while position < len(content):
        try:
            value, position = _DECODER.raw_decode(content, position)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{what} is not JSON: {str(error)[:120]}", remedy) from error
        _require_shallow(value, what, remedy)
        yield value
        position = _after_blanks(content, position)


def typed(value: Any, kind: type[T], where: str, remedy: str) -> T:
    """`value` if it has the JSON type `kind`, which is no other one's subtype: true is no whole number. Raises BadInput."""
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise BadInput(f"{where} is {_NAMES.get(type(value), 'null')}: it must be {_NAMES[kind]}", remedy)
    return value


def _after_blanks(content: str, position: int) -> int:
    while position < len(content) and content[position] in _BLANK:
        position += 1
    return position


def _unicode(text: bytes | str, what: str, remedy: str) -> str:
    if len(text) > BYTES_MAX:
        raise BadInput(f"{what} has more than {BYTES_MAX} bytes", remedy)
    try:
        content = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} is not UTF-8: {error.reason}", remedy) from error
    return content


def _require_shallow(value: Any, what: str, remedy: str) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        if any(isinstance(each, str) and _SURROGATE.search(each) for each in level):
            raise BadInput(f"{what} holds half of a surrogate pair, which is no character", remedy)
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    raise BadInput(f"{what} is nested deeper than {_DEEPEST}", remedy)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _whole(digits: str) -> int:
    return int(digits) if len(digits) <= _DIGITS_MAX else _refuse(f"{digits[:8]}…")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if abs(number) != float("inf") else _refuse(digits[:_DIGITS_MAX])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)[:40]!r} is given twice")
    return found


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once)

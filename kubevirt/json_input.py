"""JSON out of annotations and of files that others write, read as strictly as `pod.strict_json` can. Pure.

Messages say what the text is of and what is wrong, and never quote more than a few words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from kubevirt.sidecar_errors import BadInput
from userspace_cni.pod.strict_json import JsonReader, marks, once

BYTES_MAX: Final = 1 << 20
"""More than any of these texts can have: all annotations of one object together have 256 KiB at most."""
MARKS_MAX: Final = 24 << 10
"""Braces, brackets and commas of a text, which bound what it is when decoded: 3 MB."""

_JSON: Final = JsonReader(once, digits_max=32, deepest=64)
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
    if len(text) > BYTES_MAX:
        raise BadInput(f"{what} has more than {BYTES_MAX} bytes", remedy)
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        if marks(decoded) > MARKS_MAX:
            raise BadInput(f"{what} has more than {MARKS_MAX} braces, brackets and commas", remedy)
        yield from _JSON.stream(decoded)
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} is not UTF-8: {error.reason}", remedy) from error
    except ValueError as error:
        raise BadInput(f"{what} is not JSON: {str(error)[:120]}", remedy) from error


def read_typed(value: Any, kind: type[T], where: str, remedy: str) -> T:
    """`value` if it has the JSON type `kind`, which is no other one's subtype: true is no whole number. Raises BadInput."""
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise BadInput(f"{where} is {_NAMES.get(type(value), 'null')}: it must be {_NAMES[kind]}", remedy)
    return value

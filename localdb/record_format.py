"""The format of one record file: an envelope with the schema number, the real key and the value.

The key is inside because a file name may be only a hash of it, and because a file copied to another name must not pass for the
record of that name. This module must never touch the filesystem. It must never accept a record that `encode_record` cannot have
written, and must refuse any other content with `Foreign` or `Newer` alone.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from localdb.store_errors import Foreign, Newer

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
LARGEST = 16 << 20  # bytes; records are far smaller, and a foreign file must not fill a reader's memory
# Reading recurses as deep as the value is nested. A value that was written with an almost empty stack but is read with a fuller
# one would look torn and be moved aside. So a deep value is refused when it is written, far below the interpreter's limit.
DEEPEST = 100
# A Python string may hold a high and a low surrogate as two characters. JSON spells them like the one character that they form
# together, so they would come back as that character.
SPLIT_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def encode_record(key: str, value: Mapping[str, Any]) -> bytes:
    """Return the file content for `value` under `key`: one line of ASCII JSON with sorted keys.

    Raises `ValueError` for what would not come back as it went in: NaN, keys that are not strings, other types. Tuples are
    taken, and come back as lists.
    """
    if SPLIT_PAIR.search(key):
        raise ValueError(f"key {key!r} holds a surrogate pair as two characters, which JSON cannot say")
    content = dict(value)
    try:
        text = json.dumps({"schema": SCHEMA, "key": key, "value": content}, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        check_value(content, "value", 0)  # says where
        raise
    # Reading it back is the quick test, in C. A value that comes back changed may hold tuples, which are allowed, or a mistake.
    if text.count("{") + text.count("[") > DEEPEST or json.loads(text)["value"] != content:
        check_value(content, "value", 0)
    if len(text) >= LARGEST:
        raise ValueError(f"the record of {key!r} has {len(text)} bytes, at most {LARGEST} are stored")
    return text.encode("ascii") + b"\n"


def check_value(value: object, where: str, depth: int) -> None:
    """Raise `ValueError` naming the place in `value` that JSON would change, refuse or lose."""
    if depth > DEEPEST:
        raise ValueError(f"{where[:100]}...: nested deeper than {DEEPEST}")
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise ValueError(f"{where}: has a key that is not a string")
        for name, item in value.items():
            check_value(name, where, depth)
            check_value(item, f"{where}.{name}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_value(item, f"{where}[{index}]", depth + 1)
    elif isinstance(value, str):
        if SPLIT_PAIR.search(value):
            raise ValueError(f"{where}: holds a surrogate pair as two characters, which JSON cannot say")
    elif value is not None and not isinstance(value, int | float):
        raise ValueError(f"{where}: {type(value).__name__} is not a JSON type")


def decode_record(raw: bytes) -> tuple[str, dict[str, Any]]:
    """Return the key and the value of a file content.

    Raises `Foreign` for what is not a whole record, and `Newer` for a record whose schema number is greater than ours: a newer
    version wrote it, and it is good data.
    """
    try:
        envelope = json.loads(raw.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Foreign(f"is not JSON ({error})") from error
    if not isinstance(envelope, dict):
        raise Foreign("is not a JSON object")
    schema = envelope.get("schema")
    if type(schema) is not int or schema < SCHEMA:  # type() because True is an int to isinstance
        raise Foreign("has no schema number of ours")
    if schema > SCHEMA:
        raise Newer(str(schema))
    key, value = envelope.get("key"), envelope.get("value")
    if not isinstance(key, str):
        raise Foreign("names no key")
    if not isinstance(value, dict):
        raise Foreign("holds a value that is not an object")
    return key, value


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which `json` would otherwise read."""
    raise ValueError(f"{name} is not JSON")

"""A fast JSON parser for the messages of ovsdb-server.

The Python package of OVS reads JSON character by character unless its C extension was built, which the wheels on PyPI do not
have: 0.3 µs a byte, for 16 kB of schema and 50 bytes per port of a bridge. This parser has the standard library read a message
that has come whole, and finds the end of another one with a regular expression before. It implements the interface of
`ovs.json.Parser` as far as `ovs.jsonrpc` uses it, and knows nothing of OVSDB.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_DECODER: Final = json.JSONDecoder()
_NEXT_BRACE = re.compile(r'(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+([{}])', re.DOTALL)
"""All up to the next brace that is not in a string. Possessive, so that an incomplete text fails in one pass."""


class Parser:
    """Takes text in pieces until they make one JSON object."""

    def __init__(self, check_trailer: bool = False) -> None:  # noqa: ARG002 - the interface
        self._pieces: list[str] = []
        """What has been looked through; the first rows of a large database come in thousands of pieces."""
        self._rest = ""
        self._depth = 0
        self._ended = False
        self._found: Any = None
        self._garbage = ""

    def feed(self, text: str) -> int:
        """Take `text`; returns the number of characters used: less than all when the object ends within it."""
        if not (self._rest or self._depth) and (used := self._take_whole(text)):
            return used
        before, scanned = len(self._rest), 0
        self._rest += text
        if not self._depth and not self._begins():
            return len(text)
        while not self._ended and (token := _NEXT_BRACE.match(self._rest, scanned)):
            scanned = token.end()
            self._depth += 1 if token.group(1) == "{" else -1
            self._ended = not self._depth
        self._pieces.append(self._rest[:scanned])
        self._rest = self._rest[scanned:]
        return scanned - before if self._ended else len(text)

    def is_done(self) -> bool:
        """Whether `finish` has a result."""
        return bool(self._ended or self._garbage)

    def finish(self) -> Any:
        """The object; a string with the error when the text was no JSON."""
        if self._garbage:
            return self._garbage
        if self._found is not None:
            return self._found
        try:
            return json.loads("".join(self._pieces))
        except ValueError as error:
            return str(error)

    def _take_whole(self, text: str) -> int:
        """Take the object with which the text begins, if it is there to its end; the number of characters used, 0 for none."""
        if not text.startswith("{"):
            return 0
        try:
            self._found, used = _DECODER.raw_decode(text)
        except ValueError:  # cut off, or malformed
            return 0
        self._ended = True
        return used

    def _begins(self) -> bool:
        """Whether an object has begun. JSON-RPC messages are objects: anything else is garbage."""
        start = self._rest.lstrip()
        if start and not start.startswith("{"):
            self._garbage = f"not a JSON object: {start[:40]!r}"
        return start.startswith("{")

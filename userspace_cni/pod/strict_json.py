"""Reads JSON by RFC 8259: refuses what Python's parser accepts and other readers refuse or read differently.

NaN, infinities and numbers that no float holds are always refused; a `JsonReader` may refuse more. Must not quote more than a few
words of a text, nor know what the text is for. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = " \t\r\n"
_MARKS = "{[,"
_SHOWN = 40

Pairs = list[tuple[str, Any]]


def once(pairs: Pairs) -> dict[str, Any]:
    """Make an object of the pairs. Raises ValueError for a key that is given twice: readers differ in which one they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"key {name[:_SHOWN]!r} is given twice")
            seen.add(name)
    return found


def marks(text: str) -> int:
    """Count braces, brackets and commas: there are no more values in a text, however short they are, so they bound its memory."""
    return sum(map(text.count, _MARKS))


class JsonReader:
    """A parser. `pairs`: makes an object of its pairs (as `once` does); with None the last of two equal keys counts.

    `digits_max`: of a whole number. `deepest`: how deep a value may be nested; with it, half of a surrogate pair is refused too.
    """

    def __init__(
        self,
        pairs: Callable[[Pairs], Any] | None = None,
        *,
        digits_max: int | None = None,
        deepest: int | None = None,
    ) -> None:
        self.pairs = pairs
        self.digits_max = digits_max
        self.deepest = deepest

    def read(self, text: str) -> Any:
        """Parse the one value of `text`. Raises ValueError."""
        try:
            value = self._decoder().decode(text)
            return value if self._is_plain(text) else self._checked(value)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def stream(self, text: str) -> Iterator[Any]:
        """Parse values that follow one another, with white space or nothing between them. Raises ValueError."""
        decoder, position = self._decoder(), _after_blanks(text, 0)
        while position < len(text):
            try:
                value, position = decoder.raw_decode(text, position)
            except RecursionError:
                raise ValueError("nested too deeply") from None
            yield self._checked(value)
            position = _after_blanks(text, position)

    def _decoder(self) -> json.JSONDecoder:
        whole = None if self.digits_max is None else self._whole
        return json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, parse_int=whole, object_pairs_hook=self.pairs)

    def _whole(self, digits: str) -> int:
        return int(digits) if len(digits) <= (self.digits_max or 0) else _refuse(digits)

    def _is_plain(self, text: str) -> bool:
        """Whether the text alone shows that its value needs no check: a look at each value takes several times as long as the
        parser."""
        opened = text.count("{") + text.count("[")
        return (self.deepest or 0) > opened and "\\" not in text and not _SURROGATE.search(text)

    def _checked(self, value: Any) -> Any:
        """Return `value`. Raises ValueError when it is nested too deeply or has half of a surrogate pair (see `deepest`)."""
        if self.deepest is None:
            return value
        level = [value]
        for _ in range(self.deepest):
            if any(isinstance(each, str) and _SURROGATE.search(each) for each in level):
                raise ValueError("half of a surrogate pair is no character")
            level = [child for each in level for child in _children(each)]
            if not level:
                return value
        raise ValueError(f"nested deeper than {self.deepest}")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _after_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANK:
        position += 1
    return position


def _finite(digits: str) -> float:
    number = float(digits)
    return number if abs(number) != float("inf") else _refuse(digits)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word if len(word) <= _SHOWN else word[:8] + '…'} is not a JSON number")

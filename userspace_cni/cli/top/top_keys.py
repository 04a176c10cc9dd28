"""What was typed at a terminal, as names of keys. Pure.

A terminal sends escape sequences for keys without a character, and a read may end within one: `Keys.feed` keeps such a beginning
for the next read, and `Keys.flush` gives it up when nothing follows, as Escape alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_NAMES: Final = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "4~": "end",
    "5~": "pgup",
    "6~": "pgdn",
    "7~": "home",
    "8~": "end",
}
"""What follows ESC [ or ESC O (xterm, VT220, rxvt, the Linux console)."""
_CONTROLS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x0c": "redraw",
    "\x15": "clear",
    "\x04": "q",
}
_SEQUENCE: Final = re.compile(r"\x1b(?:\[([0-9;]*)([@-~])|O([ -~]))")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-9;]{0,16}|O)?$")


class Keys:
    """Decodes what is read from a terminal."""

    def __init__(self) -> None:
        self._kept = b""

    @property
    def begun(self) -> bool:
        """Whether the beginning of a sequence is kept."""
        return bool(self._kept)

    def feed(self, data: bytes) -> list[str]:
        """The keys in what was read: names, as `pgup`, or characters. Sequences of other keys are left out."""
        text, self._kept = _whole(self._kept + data)
        if begun := _BEGUN.search(text):
            self._kept = text[begun.start() :].encode() + self._kept
            text = text[: begun.start()]
        return list(_keys(text))

    def flush(self) -> list[str]:
        """Nothing followed what was kept: it was Escape alone, or nothing."""
        kept, self._kept = self._kept, b""
        return ["escape"] if kept == b"\x1b" else []


def _whole(data: bytes) -> tuple[str, bytes]:
    """The characters, and the bytes of one that has not come whole."""
    for cut in range(min(4, len(data) + 1)):
        try:
            return data[: len(data) - cut].decode(), data[len(data) - cut :]
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), b""


def _keys(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _SEQUENCE.match(text, at)
        if found:
            at = found.end()
            last = found[3] or (f"{found[1].partition(';')[0]}~" if found[2] == "~" else found[2])
            if name := _NAMES.get(last):
                yield name
            continue
        char, at = text[at], at + 1
        if char in _CONTROLS:
            yield _CONTROLS[char]
        elif char == "\x1b":
            yield "escape"
        elif char.isprintable():
            yield char

"""How wide a text is at most, and texts that fit a width, without asking a font. Pure.

A picture is drawn on a node and looked at elsewhere, with whatever fonts there are. So each character counts as wide as in the
widest of the usual sans-serif fonts, and characters of which that is not known, or that change how others are shown (marks that
stack, writing from right to left), are shown as escapes.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from userspace_cni.cli.view import plain

FONTS: Final = "'Liberation Sans', Arial, Helvetica, 'Noto Sans', 'DejaVu Sans', sans-serif"
"""None of them is wider than these widths."""
_FIRST: Final = 32
_REGULAR: Final = bytes.fromhex(
    "20 29 2e 54 40 60 4e 1c 28 28 32 54 20 25 20 22 40 40 40 40 40 40 40 40 40 40 22 22 54 54 54 38 "
    "66 45 45 49 4e 43 3e 4e 4c 1e 32 43 38 57 4b 4f 43 4f 49 43 3e 4a 45 63 45 43 45 28 22 28 54 38 "
    "32 3e 40 37 40 3e 24 40 40 1c 1c 3a 1c 62 40 3e 40 40 2a 35 28 40 3c 52 3c 3c 35 40 22 40 54 "
)
_BOLD: Final = bytes.fromhex(
    "23 2e 35 54 46 65 58 1f 2e 2e 35 54 26 2a 26 25 46 46 46 46 46 46 46 46 46 46 28 28 54 54 54 3e "
    "64 4e 4d 4a 54 45 45 53 54 26 38 4e 40 64 54 56 4a 56 4e 49 45 52 4e 6f 4e 49 49 2e 25 2e 54 38 "
    "32 44 48 3c 48 44 2c 48 48 23 23 43 23 69 48 45 48 48 32 3c 30 48 42 5d 41 42 3b 48 25 48 54 "
)
"""Hundredths of the font's size, of the characters from the space to the tilde."""
_OTHER: Final = 125
_MIDDLE: Final = "…"
_SIGNS: Final = {_MIDDLE: 100, "·": 38, "↓": 84, "↑": 84, "→": 100}
_LETTERS: Final = (range(0xC0, 0x180), range(0x391, 0x3CA), range(0x400, 0x460))
"""Letters of European languages, which have known widths in all these fonts."""


def measure(text: str, size: float, *, bold: bool = False) -> float:
    """The greatest width of the text, which `make_drawable` has made."""
    widths = _BOLD if bold else _REGULAR
    total = 0
    for char in text:
        place = ord(char) - _FIRST
        total += widths[place] if 0 <= place < len(widths) else _SIGNS.get(char, _OTHER)
    return total * size / 100


def make_drawable(text: str) -> str:
    """The text with only characters whose width is known; every other one is an escape. Paths are the host's own."""
    told = plain(text)
    if told.isascii():
        return told
    return "".join(char if _is_known(char) else char.encode("unicode_escape").decode("ascii") for char in told)


def fit(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """The text as it can be drawn in this width, shortened in the middle if it is longer: names differ at both ends."""
    drawable = make_drawable(text)
    if measure(drawable, size, bold=bold) <= width:
        return drawable
    left, right = 0, len(drawable)
    room, taken = width - measure(_MIDDLE, size, bold=bold), 0.0
    while left < right:
        from_left = left <= len(drawable) - right
        taken += measure(drawable[left if from_left else right - 1], size, bold=bold)
        if taken > room:
            break
        left, right = (left + 1, right) if from_left else (left, right - 1)
    return f"{drawable[:left]}{_MIDDLE}{drawable[right:]}"


def _is_known(char: str) -> bool:
    code = ord(char)
    if _FIRST <= code < _FIRST + len(_REGULAR) or char in _SIGNS:
        return True
    is_wide = unicodedata.category(char) == "Lo" and unicodedata.east_asian_width(char) == "W"
    return is_wide or any(code in each for each in _LETTERS)

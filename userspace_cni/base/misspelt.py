"""Which known word someone meant: for "did you mean" of networks' keys, settings, commands, options and their values.

It is for texts of any author: `is_within` looks at few letters, and `guess_word` at short words only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_EDITS: Final = 2
_SHORT: Final = 5
"""Letters up to which a word is taken for another one of a single letter's difference only."""
_LONGEST: Final = 64
"""Letters of a word that is compared at all."""
_ALIKE: Final = 0.7
"""How alike two words are, from 0 to 1, that differ in more letters."""


def guess_word(word: str, known: Iterable[str]) -> str:
    """The known word that is most like an unknown one; "" for none."""
    candidates = [each for each in known if each != word]
    if not 1 < len(word) <= _LONGEST:
        return ""
    for edits in range(1, (1 if len(word) <= _SHORT else _EDITS) + 1):
        for each in candidates:
            if is_within(word.lower(), each.lower(), edits):
                return each
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, candidates, 1, _ALIKE)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question to the user, "" where no known word is like it."""
    near = guess_word(word, known)
    return f"did you mean '{near}'?" if near else ""


def meant_or_known(word: str, known: Iterable[str], what: str = "keys") -> str:
    """The details of an error about an unknown word: the one that may be meant, and those that there are."""
    words = list(known)
    return " ".join(filter(None, (did_you_mean(word, words), f"{what} are {', '.join(words)}")))


def is_within(one: str, other: str, edits: int) -> bool:
    """Whether `edits` letters at most have to be inserted, removed or replaced to turn one text into the other."""
    if abs(len(one) - len(other)) > edits:
        return False
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    one, other = one[same:], other[same:]
    if not one or not other:
        return True
    return edits > 0 and any(
        is_within(shorter, changed, edits - 1) for shorter, changed in ((one[1:], other[1:]), (one[1:], other), (one, other[1:]))
    )

"""How large a network's configuration may be, and what is read of one that is larger. Pure.

A tenant writes it, and root's agent decodes it: size and number of values are looked at before that. ADD refuses what is larger,
so that such a network has no attachment; but DEL of it must end well, else its pod could not be removed. So of such a text a few
words are found without decoding the rest.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from userspace_cni.base.errors import InvalidConfig, Undecodable
from userspace_cni.pod.strict_json import marks


class Size(NamedTuple):
    """Bytes of a text, and how many braces, brackets and commas: that many values are in it at most."""

    octets: int
    marks: int


NEW: Final = Size(128 << 10, 8 << 10)
"""What ADD and STATUS read: with 1024 routes a network has half of it."""
LATER: Final = Size(512 << 10, 32 << 10)
"""What CHECK, DEL and GC read: the same with ADD's result, or with the list of valid attachments, in it."""
WORDS: Final = ("name", "cniVersion", "type")
"""What is found of a larger one."""

_TOKEN: Final = re.compile(rb'[^"{}\[\]]*+("(?:[^"\\]++|\\.)*+"|[{}\[\]])', re.DOTALL)
_COLON: Final = re.compile(rb"[ \t\r\n]*+:")
_BLANKS: Final = re.compile(rb"[ \t\r\n]*+")
_WORD_MAX: Final = 512
"""Bytes of a name, or of a word's value, as they are written: longer ones are none of these."""


def size_of(stdin: bytes) -> Size:
    return Size(len(stdin), marks(stdin.decode("latin-1")))


def is_within(stdin: bytes, most: Size) -> bool:
    return len(stdin) <= most.octets and size_of(stdin).marks <= most.marks


def too_large(stdin: bytes, most: Size) -> InvalidConfig:
    found = size_of(stdin)
    return InvalidConfig(
        f"the network configuration on stdin has {found.octets} bytes, with {found.marks} braces, brackets and commas",
        f"at most {most.octets} bytes and {most.marks} of these are read: see spec.config of the NetworkAttachmentDefinition, "
        "and cni-args of the pod's network selection",
    )


def read_outline(stdin: bytes) -> dict[str, str]:
    """The values of `WORDS` in the object that the text is, where they are texts; of one given twice the last.

    Raises Undecodable for what is no object. What is in its other members is not looked at.
    """
    begin = _BLANKS.match(stdin)
    at = begin.end() if begin else 0
    if stdin[at : at + 1] != b"{":
        raise Undecodable("the network configuration on stdin is not a JSON object", f"{len(stdin)} bytes were read")
    found: dict[str, str] = {}
    depth, key = 0, ""
    while token := _TOKEN.match(stdin, at):
        at = token.end()
        kind = stdin[token.start(1)]
        if kind in b"{[":
            depth, key = depth + 1, ""
        elif kind in b"}]":
            depth, key = depth - 1, ""
            if not depth:
                break
        elif depth == 1 and (colon := _COLON.match(stdin, at)):
            at, key = colon.end(), _text(token[1])
        elif depth == 1 and key in WORDS and not stdin[token.start() : token.start(1)].strip():
            found[key], key = _text(token[1]), ""
    if depth or stdin[at:].strip():
        raise Undecodable("the network configuration on stdin is not JSON", f"it does not end as it began ({len(stdin)} bytes)")
    return found


def _text(written: bytes) -> str:
    """A string, as JSON has it; "" for one that is too long, or none."""
    try:
        return str(json.loads(written)) if len(written) <= _WORD_MAX else ""
    except ValueError:
        return ""

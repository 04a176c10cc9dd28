"""A port's part in mirrors: of which it is a source, with which frames. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Final

NAME_MAX: Final = 63
NAME_FIRST: Final = f"{ascii_letters}{digits}_"
NAME_CHARACTERS: Final = f"{NAME_FIRST}.-"
NAME: Final = re.compile(rf"[{NAME_FIRST}][{re.escape(NAME_CHARACTERS)}]{{0,{NAME_MAX - 1}}}")
"""What a mirror can be called."""


@dataclass(frozen=True)
class MirrorSource:
    """A port is a source of the mirror `name` of its bridge: of the frames that come from the pod, that go to it, or both."""

    name: str
    from_pod: bool = True
    to_pod: bool = True

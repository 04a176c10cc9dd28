"""A port's part in mirrors: of which it is a source, with which frames. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Final

NAME_MAX: Final = 63
NAME_CHARACTERS: Final = f"{ascii_letters}{digits}_.-"


def is_mirror_name(name: str) -> bool:
    """Whether a mirror can be called so: 1 to NAME_MAX of NAME_CHARACTERS."""
    return 0 < len(name) <= NAME_MAX and set(name) <= set(NAME_CHARACTERS)


@dataclass(frozen=True)
class MirrorSource:
    """A port is a source of the mirror `name` of its bridge: of the frames that come from the pod, that go to it, or both."""

    name: str
    from_pod: bool = True
    to_pod: bool = True

"""What a remedy of a finding says to run, for tests that run it as it stands."""

from __future__ import annotations

import re
from typing import Final

_PROSE: Final = re.compile(r"; |, (?:and|if|when) ")
"""What ends the command: behind it is when, why, or what makes it last."""


def command_of(remedy: str) -> str:
    """The command at the beginning of a remedy."""
    return _PROSE.split(remedy)[0]

"""How messages name the host's files: by the host's own paths, whatever this process reaches them by.

An agent in a container reaches the host's root at, for example, /host (`base.root`). Errors of the kernel, of the store and of
sockets name a file by that path; their reader looks on the node, where it leads nowhere. So each error, each line of the log and
each text that a command prints passes through `as_host_names`. Only text for people does, never a path that is to be opened.
"""

from __future__ import annotations

import re
from typing import Final

_IN_A_PATH: Final = "[A-Za-z0-9._/-]"


class _RootView:
    """Where this process sees the host's root. `below`: what begins a path there; None on the host itself."""

    prefix = ""
    below: re.Pattern[str] | None = None


def see_host_at(root: str) -> None:
    """From now on this process's messages leave out `root` ("/host") in front of the host's paths. "/" is the host itself."""
    _RootView.prefix = root.rstrip("/")
    _RootView.below = re.compile(f"(?<!{_IN_A_PATH}){re.escape(_RootView.prefix)}(?=/)") if _RootView.prefix else None


def as_host_names(text: str) -> str:
    """The text with the host's own paths. The root itself, and a path that only begins alike (/hosts), stay as they are."""
    return _RootView.below.sub("", text) if _RootView.below and _RootView.prefix in text else text

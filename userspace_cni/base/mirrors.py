"""A port's part in mirrors: of which it is a source, with which frames. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MirrorSource:
    """A port is a source of the mirror `name` of its bridge: of the frames that come from the pod, that go to it, or both."""

    name: str
    from_pod: bool = True
    to_pod: bool = True

"""Words for what the switch has of a port now, and has counted there, as `list` and `show` have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WAYS: Final = (("from_pod", "from the pod"), ("to_pod", "to the pod"))
_CAUSES: Final = {
    "from_pod": (("limit_from_pod", "by the port's limit"),),
    "to_pod": (
        ("unread", "because the application did not take them"),
        ("limit_to_pod", "by the port's limit"),
        ("too_long", "because they are longer than its MTU"),
    ),
}


def mtu(recorded: int | None, now: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """The MTU of the record, and what the switch has instead; None where it has the same or is not known.

    Where none is asked for, the one that the open interface has is the switch's own choice, and no difference.
    """
    if now is None:
        return str(recorded or ""), None
    asked, opened = now["mtu"], now["mtu_open"]
    if recorded is None and asked is None:
        return str(opened or ""), None
    return str(recorded or ""), str((opened if asked == recorded and opened else asked) or "")


def dropped(frames: Mapping[str, int] | None) -> str:
    """Dropped frames in a word, as `to:12`; `0` for none, "" for what is not known."""
    if frames is None:
        return ""
    return ",".join(f"{way.removesuffix('_pod')}:{frames[way]}" for way, _ in _WAYS if frames[way]) or "0"


def counted(
    frames: Mapping[str, int] | None, drops: Mapping[str, int] | None, causes: Mapping[str, int | None]
) -> list[tuple[str, str]]:
    """Name and value of what was counted each way, with the causes of drops as far as the switch says them."""
    if frames is None or drops is None:
        return []
    return [(f"frames {text}", f"{frames[way]}{_dropped(drops[way], way, causes)}") for way, text in _WAYS]


def _dropped(count: int, way: str, causes: Mapping[str, int | None]) -> str:
    known = [f"{causes[name]} {text}" for name, text in _CAUSES[way] if causes[name]]
    why = f" ({', '.join(known)}, as the switch said up to 5 s ago)" if known else ""
    return f", {count} dropped{why}"

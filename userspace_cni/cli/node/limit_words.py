"""Words for an attachment's limits and mirrors, as `list` and `show` have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WAYS: Final = (("to_pod", "to the pod"), ("from_pod", "from the pod"))
_UNITS: Final = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def short(limits: Mapping[str, Any], by: str) -> str:
    """All limits in a word, as `to:10M,from:5M`; "" for none. `by`: who sets them."""
    if by == "ovn":
        return "by OVN"
    parts = [f"{key.removesuffix('_pod')}:{rate(limits[key]['rate'])}" for key, _ in _WAYS if limits[key]]
    return ",".join([*parts, *(["netem"] if limits["netem"] else [])])


def facts(limits: Mapping[str, Any], drops: Mapping[str, int | None], by: str) -> list[tuple[str, str]]:
    """Name and value of each limit, with the frames that each direction's has dropped; None for what is not known."""
    if by == "ovn":
        return [("limits", "OVN's: rows of QoS in its northbound database, which the controller writes")]
    found = []
    dropped = {key: "" if count is None else f", {count} frames dropped" for key, count in drops.items()}
    for key, way in _WAYS:
        if limits[key]:
            text = f"{rate(limits[key]['rate'])}bit/s, burst {rate(limits[key]['burst'])}bit"
            found.append((f"limit {way}", text + dropped[key]))
    netem = limits["netem"]
    if netem:
        text = f"latency {netem['latency_ms']} ms, jitter {netem['jitter_ms']} ms, loss {netem['loss']} %"
        text += f", queue {netem['queue']} packets" if netem["queue"] else ""
        found.append(("line to the pod", text + dropped["to_pod"]))
    return found


def rate(number: int) -> str:
    """A number of bits with its unit's prefix, as `10M`; whole numbers stay whole."""
    for size, prefix in _UNITS:
        if number >= size:
            return f"{number / size:.4g}{prefix}"
    return str(number)


def source(mirror: Mapping[str, Any]) -> str:
    """A mirror of which the port is a source, with the direction of the mirrored frames."""
    ways = [text for key, text in _WAYS if mirror[key]]
    return mirror["name"] if len(ways) == 2 else f"{mirror['name']} ({' and '.join(ways)} only)"

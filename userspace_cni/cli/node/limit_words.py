"""Words for an attachment's limits and mirrors, as `list` and `show` have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WAYS: Final = (("to_pod", "to the pod"), ("from_pod", "from the pod"))
_COLUMNS: Final = {"to_pod": "Port.qos", "netem": "Port.qos", "from_pod": "Interface.ingress_policing_rate"}
_UNITS: Final = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def short(limits: Mapping[str, Any], by: str) -> str:
    """All limits in a word, as `to:10M,from:5M`; "" for none. `by`: who sets them."""
    if by == "ovn":
        return "by OVN"
    parts = [f"{key.removesuffix('_pod')}:{rate(limits[key]['rate'])}" for key, _ in _WAYS if limits[key]]
    return ",".join([*parts, *(["netem"] if limits["netem"] else [])])


def short_now(each: Mapping[str, Any]) -> str:
    """As `short`, with what the switch has instead where that differs (`find_changes`); `each`: a described attachment."""
    limits, now, by = each["limits"], each["now"], each["limits_by"]
    changed = {found["path"].partition(" ")[0] for found in each["findings"] if found["name"] == "port-changed"}
    has = {key: now["limits"][key] if _COLUMNS[key] in changed else limit for key, limit in limits.items()}
    unknown = now["qos"] if _COLUMNS["to_pod"] in changed and not (has["to_pod"] or has["netem"]) else ""
    return ",".join(filter(None, (short(has, by), unknown)))


def facts(
    limits: Mapping[str, Any], now: Mapping[str, Any] | None, drops: Mapping[str, int | None], by: str
) -> list[tuple[str, str]]:
    """Name and value of each limit, with the frames that each direction's has dropped; None for what is not known.

    `now`: the limits that the switch has; they are named where the record has none.
    """
    if by == "ovn":
        return [("limits", "OVN's: rows of QoS in its northbound database, which the controller writes")]
    found = []
    dropped = {key: "" if count is None else f", {count} frames dropped" for key, count in drops.items()}
    for key, way in _WAYS:
        added = now[key] if now and not limits[key] else None
        if limit := limits[key] or added:
            text = f"{rate(limit['rate'])}bit/s, burst {rate(limit['burst'])}bit" + (", set by another program" if added else "")
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

"""What is told of one call to a collector of traces: when its stages ran, for whom, and how it ended. Pure.

It is written on the thread of the verb, after its answer, and holds no more than what a span may say: no configuration, no text
of an error and nothing of a pod but its names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from userspace_cni.base.stages import StagePeriod
from userspace_cni.cni.options import DEFAULT_BRIDGE
from userspace_cni.cni.request import recipient_of

TEXT_MAX: Final = 256
"""Characters of a name; a tenant chooses some."""
_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""TRACEPARENT, as W3C's Trace Context has it: version, trace, span, flags."""
_SAMPLED: Final = 1


@dataclass(frozen=True)
class TraceParent:
    """The runtime's span that the call belongs to. `state`: TRACESTATE."""

    trace: bytes
    span: bytes
    state: str


@dataclass(frozen=True)
class CallTrace:
    """A call that has been answered. Times are nanoseconds since the epoch.

    `called`: when the runtime called; `began`: when a thread of the agent took the call. `names`: of what it was for, by the keys
    of attributes. `code`: CNI's, 0 for success. `number` and `span` are chosen once, so that what is sent again is the same.
    """

    verb: str
    code: int
    called: int
    began: int
    ended: int
    stages: tuple[tuple[str, int, int], ...]
    names: Mapping[str, str]
    parent: TraceParent | None
    number: bytes = field(default_factory=lambda: os.urandom(16))
    span: int = field(default_factory=lambda: int.from_bytes(os.urandom(8)))


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the call is to be traced: the runtime's own trace, if it has one, is one that is kept."""
    found = _PARENT.fullmatch(environ.get("TRACEPARENT", ""))
    return not found or bool(int(found[3], 16) & _SAMPLED)


def read_parent(environ: Mapping[str, str]) -> TraceParent | None:
    """The runtime's span: libcni passes it to plugins in the environment. None without one, or with one that is malformed."""
    found = _PARENT.fullmatch(environ.get("TRACEPARENT", ""))
    if not found:
        return None
    trace, span = bytes.fromhex(found[1]), bytes.fromhex(found[2])
    return TraceParent(trace, span, _bounded(environ.get("TRACESTATE", ""))) if any(trace) and any(span) else None


def names_of(environ: Mapping[str, str], network: str, bridge: str) -> dict[str, str]:
    """The names of the call, by attribute; those that it has not are left out."""
    whose = recipient_of(environ)
    names = {
        "container.id": environ.get("CNI_CONTAINERID", ""),
        "k8s.namespace.name": whose.namespace,
        "k8s.pod.name": whose.name,
        "k8s.pod.uid": whose.uid,
        "cni.ifname": environ.get("CNI_IFNAME", ""),
        "cni.network": network,
        "cni.bridge": bridge,
    }
    return {key: _bounded(value) for key, value in names.items() if value}


def bridge_of(network: Mapping[str, Any], ovn_bridge: str) -> str:
    """The bridge that a network's configuration asks for; "" where that is not said in a form that is known."""
    host = network.get("host", {})
    asked = host.get("bridge", {}) if isinstance(host, dict) else None
    name = asked.get("bridgeName", "") if isinstance(asked, dict) else None
    if not isinstance(name, str):
        return ""
    return name or (ovn_bridge if network.get("ovn") else DEFAULT_BRIDGE)


def at_wall_clock(periods: Sequence[StagePeriod], offset_ns: int) -> tuple[tuple[str, int, int], ...]:
    """The periods by the wall clock, which is so many nanoseconds ahead of time.perf_counter."""
    return tuple((each.stage, int(each.began * 1e9) + offset_ns, int(each.ended * 1e9) + offset_ns) for each in periods)


def _bounded(text: str) -> str:
    """At most TEXT_MAX characters, all of which UTF-8 has."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()

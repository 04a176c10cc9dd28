"""Limits of a port, as users mean them: rates in bit/s, bursts in bits, and "to the pod" for CNI's word ingress. Pure.

CNI and Kubernetes name directions from the pod (ingress is towards it), Open vSwitch from the switch. So no name here says
ingress or egress: what reads a configuration and what writes a row each translate once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """A limit in one direction: `rate` in bit/s, `burst` in bits, never 0: what reads a configuration fills it in."""

    rate: int
    burst: int


@dataclass(frozen=True)
class Netem:
    """A worse line than there is, towards the pod (tc-netem(8)). `loss` in percent; `queue` in packets, 0 for the default."""

    latency_ms: int = 0
    jitter_ms: int = 0
    loss: int = 0
    queue: int = 0


@dataclass(frozen=True)
class Limits:
    """What a port is limited to; None for no limit."""

    to_pod: Rate | None = None
    from_pod: Rate | None = None
    netem: Netem | None = None

    def __bool__(self) -> bool:
        return any((self.to_pod, self.from_pod, self.netem))


UNLIMITED = Limits()

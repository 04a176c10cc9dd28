"""Limits of a port, as users mean them: rates in bit/s, bursts in bits, and "to the pod" for CNI's word ingress. Pure.

CNI and Kubernetes name directions from the pod (ingress is towards it), Open vSwitch from the switch. So no name here says
ingress or egress: `read_rates`, what reads annotations, and what writes a row translate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.errors import InvalidConfig

RATE_MIN: Final = 1000
RATE_MAX: Final = (2**32 - 1) * 1000
"""OVS takes kbit/s in 32 bits."""
BURST_MIN: Final = 64 * 1024 * 8
"""The least burst that is chosen, in bits: a segment of TCP as the kernel hands it over."""
NOT_GIVEN: Final = 2**31 - 1
"""A burst from here on counts as not given. Runtimes write a largest number where a pod's annotations say a rate alone:
cri-dockerd 2147483647, containerd 4294967295, CRI-O 34359738360."""
WORDS: Final = (("to_pod", "ingress"), ("from_pod", "egress"))
"""The directions, with CNI's words for them."""


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

    def __or__(self, other: Limits) -> Limits:
        """Each of these limits, and where there is none the other's."""
        return Limits(self.to_pod or other.to_pod, self.from_pod or other.from_pod, self.netem or other.netem)


UNLIMITED = Limits()


def read_rates(values: Mapping[str, int], named: Callable[[str], str], netem: Netem | None = None) -> Limits:
    """The limits of CNI's values ingressRate, ingressBurst, egressRate and egressBurst, 0 for what is not given.

    `named`: how an error speaks of a key. Raises InvalidConfig.
    """
    to_pod, from_pod = (_rate(values, word, named) for _, word in WORDS)
    return Limits(to_pod, from_pod, netem)


def _rate(values: Mapping[str, int], word: str, named: Callable[[str], str]) -> Rate | None:
    rate, burst = values.get(f"{word}Rate", 0), values.get(f"{word}Burst", 0)
    if burst < 0:
        raise InvalidConfig(
            f"{named(f'{word}Burst')} is {burst}", "it must be a number of bits; leave it out for 100 ms of the rate"
        )
    if burst >= NOT_GIVEN:
        burst = 0
    if not rate and burst:
        raise InvalidConfig(f"{named(f'{word}Burst')} is {burst} without a rate", f"give {word}Rate, too, or leave both out")
    if not rate:
        return None
    if not RATE_MIN <= rate <= RATE_MAX:
        raise InvalidConfig(f"{named(f'{word}Rate')} is {rate}", f"it must be from {RATE_MIN} to {RATE_MAX} bit/s, or left out")
    return Rate(rate, burst or max(rate // 10, BURST_MIN))

"""Limits as networks, runtimes and pods write them: which of them holds, in which unit, and what a kind of port can do. Pure.

Here CNI's words are translated: ingress is towards the pod. Whatever cannot be meant, or cannot be done by the port's kind, is
refused by name; no limit is ever dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, UnsupportedField
from userspace_cni.base.limits import UNLIMITED, WORDS, Limits, Netem, Rate, read_rates
from userspace_cni.base.port_kinds import PortKind
from userspace_cni.cni import keys
from userspace_cni.cni.annotations import PodInterface, read_annotation, refusal
from userspace_cni.cni.json_values import read_typed
from userspace_cni.cni.network_keys import BURST_MAX, TABLE

QDISC_RATE_MAX: Final = (2**32 - 1) * 8
"""What the kernel's own disciplines take of OVS before 3.2: bytes a second in 32 bits."""
USUAL_MTU: Final = 1500

_PAIRED: Final = ("kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth")
_KUBEOVN_RATES: Final = {
    "ingress_rate": "ingressRate",
    "ingress_burst": "ingressBurst",
    "egress_rate": "egressRate",
    "egress_burst": "egressBurst",
}
_KUBEOVN_LINE: Final = {"latency": "latency_ms", "jitter": "jitter_ms", "limit": "limit", "loss": "loss_percent"}
_OWN: Final = "userspace/bandwidth"
_EXAMPLE: Final = '{"net1": {"ingressRate": "100M", "egressRate": "50M"}}'


@dataclass(frozen=True)
class Bandwidth:
    """Limits by who says them: `runtime` (runtimeConfig.bandwidth) before a pod's annotations before `network`, by direction."""

    runtime: Limits = UNLIMITED
    network: Limits = UNLIMITED


def read_bandwidth(top: Mapping[str, Any], runtime: Mapping[str, Any]) -> Bandwidth:
    """Read `bandwidth` and `netem` of the network (`top`, canonically spelled), and `runtimeConfig`."""
    known = keys.PLACES["bandwidth"]
    said = keys.normalize_keys(read_typed(top, "bandwidth", dict, {}), known, "bandwidth")
    place = "runtimeConfig.bandwidth"  # containerd writes "IngressRate"
    asked = keys.normalize_keys(read_typed(runtime, "bandwidth", dict, {}, path="runtimeConfig."), known, place)
    netem = _read_netem(
        keys.normalize_keys(read_typed(top, "netem", dict, {}), keys.PLACES["netem"], "netem"), lambda key: f"key 'netem.{key}'"
    )
    return Bandwidth(_read_rates(asked, place), _read_rates(said, "bandwidth", netem))


def resolve(bandwidth: Bandwidth, noted: Limits, before: Limits | None = None) -> Limits:
    """The limits that hold, for each direction from the first who says one: the runtime, `noted`, the network.

    `noted`: what the pod's annotations say (`limits_of`). For a living attachment `before` is what they said at ADD: where they
    say another thing now, that holds before the runtime's, which may come from the same annotations; where they say nothing more,
    the network's holds.
    """

    def first(direction: str) -> Rate | None:
        runtime, now, network = (getattr(each, direction) for each in (bandwidth.runtime, noted, bandwidth.network))
        changed = before is not None and now != getattr(before, direction)
        found: Rate | None = (None if changed else runtime) or now or network
        return found

    return Limits(first("to_pod"), first("from_pod"), noted.netem or bandwidth.network.netem)


def limits_of(annotations: Mapping[str, str], interface: PodInterface) -> Limits:
    """The limits that a pod's annotations ask for at this interface, for each direction from the first that says one.

    `userspace/bandwidth` names interfaces, kube-ovn's annotations networks; those of kubernetes.io are the default interface's.
    Raises InvalidConfig naming the annotation.
    """
    if not annotations:
        return UNLIMITED
    own = _own_limits(annotations, interface)
    theirs = _kubeovn_limits(annotations, interface)
    default = _default_limits(annotations) if interface.is_default else UNLIMITED
    to_pod, from_pod = (
        getattr(own, direction) or getattr(theirs, direction) or getattr(default, direction) for direction, _ in WORDS
    )
    return Limits(to_pod, from_pod, theirs.netem)


def require_possible(limits: Limits, kind: PortKind | None, mtu: int | None, where: str = "") -> None:
    """Raise UnsupportedField for limits that a port of that kind cannot have, InvalidConfig for a burst below its MTU (bytes).

    `kind` is None while it is not known; `mtu` None counts as 1500. `where` is written before the names of keys, as "bandwidth.".
    """
    for direction, word in WORDS:
        rate: Rate | None = getattr(limits, direction)
        if rate is None:
            continue
        if rate.burst < 8 * (mtu or USUAL_MTU):
            raise InvalidConfig(
                f"key '{where}{word}Burst' is {rate.burst} bits, less than one frame of the MTU {mtu or USUAL_MTU}",
                f"it must be {8 * (mtu or USUAL_MTU)} or more; without it, the burst is what the rate is in 100 ms",
            )
        named = f"key '{where}{word}Rate' is {rate.rate}"
        if kind == "afxdp" and direction == "to_pod":
            raise UnsupportedField(
                f"{named}: OVS does not limit what it sends to a port of type 'afxdp'",
                "give the network 'host.port': 'system', 'af_packet' or 'af_xdp', or leave the rate out; egressRate is possible",
            )
        if kind in ("system", "afxdp") and rate.rate > QDISC_RATE_MAX:
            raise UnsupportedField(
                f"{named}: a port of type '{kind}' is limited to {QDISC_RATE_MAX} at most", "leave the rate out, or lower it"
            )
    if not limits.netem:
        return
    shown = _spelled(limits.netem)
    if kind not in (None, "system"):
        remedy = "it needs 'host.iftype': 'veth' with 'host.port': 'system'; else remove it"
        raise UnsupportedField(
            f"key 'netem' is {shown}: a port of type '{kind}' has no queueing discipline of the kernel", remedy
        )
    if limits.to_pod:
        raise UnsupportedField(
            f"key 'netem' is {shown} beside an ingressRate of {limits.to_pod.rate}: a link has one queueing discipline",
            "leave one of the two out",
        )


def require_possible_by_ovn(limits: Limits, mtu: int | None, where: str = "") -> None:
    """The same for limits that are rows of OVN, whose meters drop what is too much, whatever the kind of the port."""
    if limits.netem:
        raise UnsupportedField(
            f"key 'netem' is {_spelled(limits.netem)} beside 'ovn.limits' 'ovn': OVN delays no frames, and loses none by chance",
            "remove one of the two",
        )
    require_possible(limits, None, mtu, where)


def _read_rates(raw: Mapping[str, Any], place: str, netem: Netem | None = None) -> Limits:
    for key in (each for each in keys.PARTIAL if each in raw):
        if subnets := read_typed(raw, key, list, [], path=f"{place}."):
            raise UnsupportedField(
                f"key '{place}.{key}' is {subnets!r}: a port's limit holds for all of its traffic", "remove it, or the limit"
            )
    values = {key: read_typed(raw, key, int, 0, path=f"{place}.") for key in keys.BANDWIDTH if key in raw}
    for key, value in values.items():
        if value > BURST_MAX:
            raise InvalidConfig(f"key '{place}.{key}' is {value}", f"it must be {BURST_MAX} at most")
    return read_rates(values, lambda key: f"key '{place}.{key}'", netem)


def _read_netem(raw: Mapping[str, Any], named: Callable[[str], str]) -> Netem | None:
    """Read a worse line; None where all is 0."""
    bounds = {key.name: key.bounds[1] for key in TABLE if key.place == "netem" and key.bounds}
    for key, most in bounds.items():
        value = 0 if raw.get(key) is None else raw[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise InvalidConfig(f"{named(key)} is {value!r}", f"it must be a whole number from 0 to {most}")
    latency, jitter, loss, queue = (raw.get(key) or 0 for key in bounds)
    if jitter and not latency:
        raise InvalidConfig(f"{named('jitter_ms')} is {jitter} without a latency", "give latency_ms, too: it is what varies")
    return Netem(latency, jitter, loss, queue) if any((latency, loss, queue)) else None


def _spelled(netem: Netem) -> dict[str, int]:
    """A worse line in the words of a network, without what is not said."""
    said = zip(keys.PLACES["netem"], (netem.latency_ms, netem.jitter_ms, netem.loss, netem.queue), strict=True)
    return {key: value for key, value in said if value}


def _own_limits(annotations: Mapping[str, str], interface: PodInterface) -> Limits:
    said = interface.own(annotations, _OWN, _EXAMPLE)
    if said is None:
        return UNLIMITED

    def named(key: str) -> str:
        return f"annotation '{_OWN}': {key} of {interface.ifname}"

    if not isinstance(said, dict) or (unknown := sorted(said.keys() - set(keys.BANDWIDTH))):
        what = f"has the key {unknown[0]!r}" if isinstance(said, dict) else f"is {said!r}"
        raise refusal(f"annotation '{_OWN}': its value for {interface.ifname} {what}", f"as {_EXAMPLE}, with {keys.BANDWIDTH}")
    return read_rates({key: _quantity(value, named(key)) for key, value in said.items()}, named)


def _default_limits(annotations: Mapping[str, str]) -> Limits:
    """Those of kubernetes.io, which know no burst."""
    names = dict(zip(("ingressRate", "egressRate"), _PAIRED, strict=True))
    said = {key: (name, read_annotation(annotations, name)) for key, name in names.items()}
    values = {key: _quantity(text, f"annotation '{name}'") for key, (name, text) in said.items() if text}
    return read_rates(values, lambda key: f"annotation '{names[key]}'")


def kubeovn_rates(said: Callable[[str], tuple[str, str]]) -> Limits:
    """Rates as kube-ovn writes them, in Mbit/s, and bursts in Mbit; 0 and "" are none. A worse line is not among them.

    `said` returns for a key, such as "ingress_rate", its name in errors, and its value. Raises InvalidConfig.
    """
    return read_rates(*_numbers(said, _KUBEOVN_RATES, 1_000_000))


def _kubeovn_limits(annotations: Mapping[str, str], interface: PodInterface) -> Limits:
    """Those of kube-ovn: rates as above, and a worse line in ms, packets and percent; 0 for none."""

    def said(key: str) -> tuple[str, str]:
        name, text = interface.kubeovn(annotations, key)
        return f"annotation '{name}'", text

    return replace(kubeovn_rates(said), netem=_read_netem(*_numbers(said, _KUBEOVN_LINE, 1)))


def _numbers(
    said: Callable[[str], tuple[str, str]], words: Mapping[str, str], unit: int
) -> tuple[dict[str, int], Callable[[str], str]]:
    """The values that are said, by our word for each key and in our unit; and how an error speaks of one."""
    values: dict[str, int] = {}
    names: dict[str, str] = {}
    for key, ours in words.items():
        name, text = said(key)
        if not text:
            continue
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise refusal(f"{name} is {text!r}", "it must be a whole number, as OVS takes it")
        values[ours], names[ours] = int(text) * unit, name
    return values, lambda key: names.get(key, key)


def _quantity(value: object, named: str) -> int:
    """A rate or burst as Kubernetes writes quantities: 100M, 1.5G, 64k, or a number."""
    from userspace_cni.pod.quantity import amount  # decimal costs: most pods say nothing

    found = amount(value)
    if not found:
        raise refusal(f"{named} is {value!r}", "it must be a quantity of bits, such as 100M; leave it out for no limit")
    return found

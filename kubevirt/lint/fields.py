"""Fields of a VM that KubeVirt's API does not have: written in another case, or as forks of KubeVirt have them. Pure.

To Kubernetes they are unknown: refused where fields are validated strictly, and dropped elsewhere. Their author sees nothing
missing, and here nothing would be: an interface whose `binding` has no `name` has no binding, and one with `vhostuser: {}` is
bound by default, which is no vhost-user.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from kubevirt.lint.machine import BINDING_METHODS, LintedMachine
from kubevirt.lint.reading import DocumentValue

_INTERFACE: Final = (
    *("name", "binding", "macAddress", "model", "pciAddress", "acpiIndex", "bootOrder", "state"),
    *("dhcpOptions", "ports", "portRanges", "tag", *BINDING_METHODS),
)
"""All fields of an interface."""
_NETWORK: Final = ("name", "multus", "pod", "resourceClaim")
_SHOWN_MAX: Final = 40
_BELOW: Final[Mapping[str, Collection[str]]] = {
    "binding": ("name",),
    "multus": ("networkName", "default"),
    "resourceClaim": ("claimName", "requestName"),
}


def judge_fields(machine: LintedMachine) -> None:
    """Those fields of interfaces, networks and memory that decide about a vhost-user interface."""
    domain = machine.instance.child("domain")
    for interface in domain.child("devices").items("interfaces"):
        _judge(interface, _INTERFACE)
        _judge_method(interface)
    for network in machine.instance.items("networks"):
        _judge(network, _NETWORK)
    memory = domain.child("memory")
    _judge_case(memory, ("guest", "hugepages"))
    _judge_case(memory.child("hugepages"), ("pageSize",))


def _judge(spot: DocumentValue, names: Collection[str]) -> None:
    _judge_case(spot, names)
    for name in names:
        if name in _BELOW and isinstance(spot.get(name), Mapping):
            _judge_case(spot.child(name), _BELOW[name])


def _judge_method(interface: DocumentValue) -> None:
    """Report objects in an interface that are no field of it: each would be the way in which it is bound."""
    known = {name.lower() for name in _INTERFACE}
    for key, value in interface.value.items() if isinstance(interface.value, Mapping) else ():
        if not isinstance(key, str) or key.lower() in known or not (value is None or value is True or isinstance(value, Mapping)):
            continue
        [meant] = get_close_matches(key, BINDING_METHODS, n=1) or [""]
        DocumentValue(None, interface.at(key), interface.report).find(
            "unknown-binding",
            "error",
            f"'{key[:_SHOWN_MAX]}' is no way of KubeVirt's to bind an interface: it is dropped or refused, "
            "and without it the interface is bound by default",
            f"write {meant}" if meant else "write `binding: {name: vhostuser}`, with the name that the KubeVirt object registers",
        )


def _judge_case(spot: DocumentValue, names: Collection[str]) -> None:
    known = {name.lower(): name for name in names}
    for key in spot.value if isinstance(spot.value, Mapping) else ():
        meant = known.get(key.lower(), key) if isinstance(key, str) else key
        if meant != key:
            DocumentValue(None, spot.at(key), spot.report).find(
                "field-case",
                "error",
                f"'{key}' is no field of KubeVirt's: names of fields differ by case, and it is dropped or refused",
                f"write {meant}",
            )

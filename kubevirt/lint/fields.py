"""Fields of a VM that are written in another case than KubeVirt's API has them. Pure.

To Kubernetes they are unknown: refused where fields are validated strictly, and dropped elsewhere. Their author sees nothing
missing, and here nothing would be: an interface whose `binding` has no `name` has no binding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kubevirt.lint.machine import Machine
from kubevirt.lint.reading import Spot

_INTERFACE: Final = ("name", "binding", "macAddress", "model", "pciAddress", "acpiIndex", "bootOrder", "state")
_NETWORK: Final = ("name", "multus", "pod", "resourceClaim")
_BELOW: Final[Mapping[str, Collection[str]]] = {
    "binding": ("name",),
    "multus": ("networkName", "default"),
    "resourceClaim": ("claimName", "requestName"),
}


def judge_fields(machine: Machine) -> None:
    """Those fields of interfaces, networks and memory that decide about a vhost-user interface."""
    domain = machine.instance.child("domain")
    for interface in domain.child("devices").items("interfaces"):
        _judge(interface, _INTERFACE)
    for network in machine.instance.items("networks"):
        _judge(network, _NETWORK)
    memory = domain.child("memory")
    _judge_case(memory, ("guest", "hugepages"))
    _judge_case(memory.child("hugepages"), ("pageSize",))


def _judge(spot: Spot, names: Collection[str]) -> None:
    _judge_case(spot, names)
    for name in names:
        if name in _BELOW and isinstance(spot.get(name), Mapping):
            _judge_case(spot.child(name), _BELOW[name])


def _judge_case(spot: Spot, names: Collection[str]) -> None:
    known = {name.lower(): name for name in names}
    for key in spot.value if isinstance(spot.value, Mapping) else ():
        meant = known.get(key.lower(), key) if isinstance(key, str) else key
        if meant != key:
            Spot(None, spot.at(key), spot.report).find(
                "field-case",
                "error",
                f"'{key}' is no field of KubeVirt's: names of fields differ by case, and it is dropped or refused",
                f"write {meant}",
            )

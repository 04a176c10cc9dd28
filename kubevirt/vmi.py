"""Reads the parts of a VirtualMachineInstance that matter for vhost-user interfaces. Pure.

Fields that are used must have the right type; all others are ignored: a VMI of a newer KubeVirt with unknown fields must be read.
`null` counts as absent, as it does for Kubernetes. Ranges are not checked here, but by the users of the values. Messages name the
JSON path, never the whole document.

Source: KubeVirt's staging/src/kubevirt.io/api/core/v1 (VirtualMachineInstance).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from kubevirt.sidecar_errors import BadInput

REMEDY: Final = (
    "compare it with what `kubectl get vmi NAME -o json` shows; another sidecar or admission webhook may have changed it"
)

_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""What no XML document can hold, or no name should: control characters, lone surrogates, two non-characters."""

T = TypeVar("T")


@dataclass(frozen=True)
class VmInterface:
    """One interface of a VM, `spec.domain.devices.interfaces[]`.

    `network`: its name, which is its network's too. `binding`: name of its binding plugin. `state`: "up", "down", "absent".
    Strings are "" and numbers None where the VM does not say.
    """

    network: str
    binding: str = ""
    mac: str = ""
    model: str = ""
    pci_address: str = ""
    acpi_index: int | None = None
    boot_order: int | None = None
    state: str = ""


@dataclass(frozen=True)
class NetworkClaim:
    """`resourceClaim` of a network: name in the pod's `resourceClaims`, and which request of that claim.

    `named`: the ResourceClaim that the VM names there, "" where a template makes one for each pod, None where it says neither.
    """

    name: str
    request: str = ""
    named: str | None = None


@dataclass(frozen=True)
class VmNetwork:
    """One network of a VM, `spec.networks[]`: `multus` is [namespace/]name of its definition.

    `pod`: it is the pod's own, or one of Multus in its place (`multus.default`): the pod's interface for it is eth0.
    """

    name: str
    multus: str = ""
    claim: NetworkClaim | None = None
    pod: bool = False


@dataclass(frozen=True)
class VirtualMachine:
    """A VM. `interfaces` are in the VMI's order; `networks` by name; `hugepages` is the page size as written, "" for none.

    `vcpus`: the product of sockets, cores and threads, None when `spec.domain.cpu` gives none (KubeVirt then counts requests).
    """

    namespace: str
    name: str
    uid: str = ""
    interfaces: tuple[VmInterface, ...] = ()
    networks: Mapping[str, VmNetwork] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    vcpus: int | None = None
    multiqueue: bool = False
    transitional: bool = False
    hugepages: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_bound_interfaces(machine: VirtualMachine, binding: str) -> tuple[VmInterface, ...]:
    """The interfaces that binding plugin `binding` has to bring, in the VMI's order; those with `state: absent` are not."""
    return tuple(each for each in machine.interfaces if each.binding == binding and each.state != "absent")


def read_vmi(raw: bytes | str | Mapping[str, Any]) -> VirtualMachine:
    """Read the VM of a VMI's JSON, as text or decoded. Raises BadInput naming the JSON path of what is wrong."""
    root = _JsonNode("", raw if isinstance(raw, Mapping) else _decoded(raw))
    metadata, spec = root.child("metadata"), root.child("spec")
    domain, named = spec.child("domain"), _named_claims(spec)
    devices = domain.child("devices")
    networks = _unique(spec, "networks", lambda each: _network(each, named), lambda each: each.name)
    return VirtualMachine(
        namespace=metadata.require("namespace"),
        name=metadata.require("name"),
        uid=metadata.text("uid"),
        interfaces=tuple(_unique(devices, "interfaces", _interface, lambda each: each.network)),
        networks={each.name: each for each in networks},
        annotations=metadata.texts("annotations"),
        vcpus=_vcpus(domain.child("cpu")),
        multiqueue=devices.flag("networkInterfaceMultiqueue"),
        transitional=devices.flag("useVirtioTransitional"),
        hugepages=domain.child("memory").child("hugepages").text("pageSize"),
    )


@dataclass(frozen=True)
class _JsonNode:
    """One JSON object and its path. An absent object is an empty one."""

    path: str
    fields: Mapping[str, Any]

    def child(self, name: str) -> _JsonNode:
        return _JsonNode(self._at(name), self._get(name, Mapping, "an object") or {})

    def is_present(self, name: str) -> bool:
        return self._get(name, Mapping, "an object") is not None

    def children(self, name: str) -> list[_JsonNode]:
        nodes = []
        for number, item in enumerate(self._get(name, list, "a list") or []):
            path = f"{self._at(name)}[{number}]"
            nodes.append(_JsonNode(path, _typed(item, Mapping, path, "an object")))
        return nodes

    def text(self, name: str) -> str:
        value: str = self._get(name, str, "a string") or ""
        return _printable(value, self._at(name))

    def require(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise BadInput(f"the VMI has no {self._at(name)}", REMEDY)
        return value

    def number(self, name: str) -> int | None:
        value: int | None = self._get(name, int, "a whole number")
        return value

    def flag(self, name: str) -> bool:
        return bool(self._get(name, bool, "true or false"))

    def texts(self, name: str) -> dict[str, str]:
        """Strings by name. Values are texts of whatever form (JSON, scripts), so nothing in them is looked at."""
        path, found = self._at(name), {}
        for key, value in self.child(name).fields.items():
            if value is not None:
                found[_typed(key, str, path, "keyed by strings")] = _typed(value, str, f"{path}[{key!r}]", "a string")
        return found

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _get(self, name: str, kind: type, what: str) -> Any:
        value = self.fields.get(name)
        return None if value is None else _typed(value, kind, self._at(name), what)


def _typed(value: Any, kind: type, path: str, what: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadInput(f"{path} of the VMI is {_shown(value)}: it must be {what}", REMEDY)
    return value


def _printable(value: str, path: str) -> str:
    if found := _UNPRINTABLE.search(value):
        raise BadInput(f"{path} of the VMI holds the character {found.group()!a}", REMEDY)
    return value


def _shown(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", str: "a string", int: "a number", float: "a number", list: "a list"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "an object")


def _decoded(raw: bytes | str) -> Mapping[str, Any]:
    """The top-level object. `json` itself would also take UTF-16 and UTF-32, which no Kubernetes component writes."""
    try:
        value = json.loads(raw.decode("utf-8") if isinstance(raw, bytes) else raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the VMI is not JSON: {str(error)[:200]}", REMEDY) from error
    if not isinstance(value, Mapping):
        raise BadInput(f"the VMI is {_shown(value)}: it must be an object", REMEDY)
    return cast("Mapping[str, Any]", value)


def _unique(node: _JsonNode, name: str, read: Callable[[_JsonNode], T], key: Callable[[T], str]) -> Iterable[T]:
    seen: dict[str, T] = {}
    for child in node.children(name):
        item = read(child)
        if key(item) in seen:
            raise BadInput(f"{child.path}.name of the VMI is {key(item)!r}, which an earlier one of {name} has", REMEDY)
        seen[key(item)] = item
    return seen.values()


def _interface(node: _JsonNode) -> VmInterface:
    return VmInterface(
        network=node.require("name"),
        binding=node.child("binding").text("name"),
        mac=node.text("macAddress"),
        model=node.text("model"),
        pci_address=node.text("pciAddress"),
        acpi_index=node.number("acpiIndex"),
        boot_order=node.number("bootOrder"),
        state=node.text("state"),
    )


def _named_claims(spec: _JsonNode) -> dict[str, str | None]:
    """For each claim of the VM the ResourceClaim that it names, as `NetworkClaim` has it."""
    found: dict[str, str | None] = {}
    for each in spec.children("resourceClaims"):
        named = each.text("resourceClaimName")
        found[each.text("name")] = named or ("" if each.text("resourceClaimTemplateName") else None)
    return found


def _network(node: _JsonNode, named: Mapping[str, str | None]) -> VmNetwork:
    claim = node.child("resourceClaim")
    name = claim.require("claimName") if node.is_present("resourceClaim") else ""
    return VmNetwork(
        name=node.require("name"),
        multus=node.child("multus").text("networkName"),
        claim=NetworkClaim(name, claim.text("requestName"), named.get(name)) if name else None,
        pod=node.is_present("pod") or node.child("multus").flag("default"),
    )


def _vcpus(cpu: _JsonNode) -> int | None:
    """As KubeVirt counts: what is absent or 0 is 1."""
    counts = [cpu.number(name) for name in ("sockets", "cores", "threads")]
    if not any(counts):
        return None
    sockets, cores, threads = (count or 1 for count in counts)
    return sockets * cores * threads

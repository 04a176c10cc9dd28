"""Which annotations of a pod are read of one of its interfaces, under which names. Pure.

Three kinds are read: ours (`userspace/…`, by interface), Kubernetes' own for the default interface, and, where the administrator
says so, those that users of kube-ovn and of OVN's tools have. A pod's author writes them all: what they choose is bounded by the
network and by the administrator's rules, and a text that is no such value is refused with its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from userspace_cni.base.errors import InvalidConfig, shorten
from userspace_cni.pod.strict_json import JsonReader, once

DEFAULT_INTERFACE: Final = "eth0"
"""The name that every runtime gives to the interface of a pod's default network."""
OVN: Final = "ovn"
"""The annotation that OVN's own tools write for the default interface: ip_address, mac_address, gateway_ip."""
POD_NETWORKS: Final = "k8s.ovn.org/pod-networks"
"""The same of several interfaces, as ovn-kubernetes writes it: an object by network."""
Logical = Literal["", "first", "further", "open"]
"""Which logical port of OVN of its pod an interface is, "" for none; "open": the first, unless the pod's annotations have it as a
further one."""

_LIMITS: Final = ("kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth", "userspace/bandwidth")
_READ: Final = (*_LIMITS, "userspace/mirror", OVN, POD_NETWORKS)
_KUBEOVN_LIMITS: Final = ("ingress_rate", "ingress_burst", "egress_rate", "egress_burst", "latency", "jitter", "limit", "loss")
_KUBEOVN: Final = (
    *("ip_address", "mac_address", "gateway", "cidr", "routes", "default_route", "vlan_id", "mirror", "pod_nic_type"),
    *_KUBEOVN_LIMITS,
)
_THEIRS: Final = re.compile(rf"(.+\.)?ovn(\.[^./]+)?\.kubernetes\.io/({'|'.join(_KUBEOVN)})")
_JSON: Final = JsonReader(once, deepest=8)
_OVN_EXAMPLE: Final = '{"ip_address": "192.0.2.7/24", "mac_address": "02:00:00:00:00:07", "gateway_ip": "192.0.2.1"}'
_REPR_ITEM: Final = re.compile(r"\s*u?(['\"])(\w{1,32})\1\s*:\s*u?(['\"])([\w.:/, -]{0,256})\3\s*(,|\Z)", re.ASCII)
_KEY_PARTS: Final = 3
_TEXT_MAX: Final = 16 << 10
"""Characters of an annotation: twice what 64 routes, or the limits of a hundred interfaces, need."""


def is_read(name: str) -> bool:
    """Whether an annotation of this name may decide about an interface: what knows pods keeps its value."""
    return name in _READ or bool(_THEIRS.fullmatch(name))


def is_of_limits(name: str) -> bool:
    """Whether it may say limits of an interface."""
    found = None if name in _LIMITS else _THEIRS.fullmatch(name)
    return name in _LIMITS or (found is not None and found[3] in _KUBEOVN_LIMITS)


def refusal(message: str, details: str) -> InvalidConfig:
    """The error for an annotation that cannot be meant; its value may be as long as its author likes."""
    return InvalidConfig(shorten(message), details)


@dataclass(frozen=True)
class PodInterface:
    """An interface of a pod, as annotations know it: the name of its network, the pod's namespace, its name in the pod.

    `kubeovn_read`: whether the annotations of kube-ovn and OVN are read (setting kubeovn_annotations). `logical`: a logical
    port's addresses are where the controller of logical ports writes them, whatever that setting says.
    """

    network: str
    namespace: str
    ifname: str
    kubeovn_read: bool = False
    logical: Logical = ""

    def judged(self, annotations: Mapping[str, str]) -> PodInterface:
        """The interface with these annotations of its pod, by which it is the first or a further one."""
        if self.logical != "open":
            return self
        return replace(self, logical="further" if self.ifname in list_noted_further(annotations, self.namespace) else "first")

    @property
    def is_default(self) -> bool:
        return self.ifname == DEFAULT_INTERFACE

    def own(self, annotations: Mapping[str, str], name: str, example: str) -> object:
        """What an annotation of ours, a JSON object by interface, says of this one; None for nothing. Raises InvalidConfig."""
        text = read_annotation(annotations, name)
        if not text:
            return None
        held = json_object(name, text, example)
        return held.get(self.ifname)

    def kubeovn(self, annotations: Mapping[str, str], key: str) -> tuple[str, str]:
        """Name and value of kube-ovn's annotation `key` for this interface, the value stripped; "" for none.

        `<nad>.<namespace>.ovn.kubernetes.io/…` before `ovn.kubernetes.io/…`, which is the default interface's. `<nad>` is the
        network's name; a definition of the pod's own namespace comes before one of another.
        """
        for provider in self._providers(annotations, key):
            name = f"{provider}.kubernetes.io/{key}"
            if value := read_annotation(annotations, name).strip():
                return name, value
        return f"{self.usual_provider}.kubernetes.io/{key}", ""

    @property
    def ovn_annotation(self) -> str:
        """The annotation of OVN's tools that is about the interface, "" for none."""
        if self.logical == "further":
            return POD_NETWORKS
        return OVN if self.logical or (self.kubeovn_read and self.is_default) else ""

    def ovn(self, annotations: Mapping[str, str]) -> dict[str, object]:
        """What that annotation says of the interface; {} for nothing. Raises InvalidConfig."""
        name = self.ovn_annotation
        text = read_annotation(annotations, name) if name else ""
        if not text:
            return {}
        if name == OVN:
            return _read_repr(text) or json_object(name, text, _OVN_EXAMPLE)
        example = f'{{"{self.namespace}/{self.network}": {_OVN_EXAMPLE}}}'
        held = json_object(name, text, example)
        for key in (f"{self.namespace}/{self.network}/{self.ifname}", f"{self.namespace}/{self.network}", self.network):
            said = held.get(key)
            if isinstance(said, dict):
                return said
            if said is not None:
                raise refusal(f"annotation '{name}' has {said!r} as {key!r}, not an object", f"it must look like {example}")
        return {}

    @property
    def usual_provider(self) -> str:
        """How kube-ovn calls the network where nothing says otherwise."""
        return OVN if self.is_default else f"{self.network}.{self.namespace}.{OVN}"

    def _providers(self, annotations: Mapping[str, str], key: str) -> list[str]:
        if not self.kubeovn_read:
            return []
        ours = f"{self.network}.{self.namespace}.{OVN}"
        rest = f".{OVN}.kubernetes.io/{key}"
        others = sorted(
            name.removesuffix(f".kubernetes.io/{key}")
            for name in annotations
            if name.startswith(f"{self.network}.") and name.endswith(rest) and "." not in name[len(self.network) + 1 : -len(rest)]
        )
        return [f"{ours}.{self.ifname}", ours, *others, *([OVN] if self.is_default else [])]


def read_annotation(annotations: Mapping[str, str], name: str) -> str:
    """The annotation's value, "" for none. Raises InvalidConfig for one that is longer than any that can be meant."""
    text = annotations.get(name, "")
    if len(text) > _TEXT_MAX:
        raise refusal(f"annotation '{name}' has {len(text)} characters", f"{_TEXT_MAX} are read at most")
    return text


def list_noted_further(annotations: Mapping[str, str], namespace: str) -> frozenset[str]:
    """The interfaces of a pod that the controller of logical ports has noted as further ones, as namespace/network/interface."""
    try:
        text = read_annotation(annotations, POD_NETWORKS)
        held = json_object(POD_NETWORKS, text, "") if text else {}
    except InvalidConfig:
        return frozenset()
    parts = [key.split("/") for key in held]
    return frozenset(of[-1] for of in parts if len(of) == _KEY_PARTS and of[0] == namespace)


def json_object(name: str, text: str, example: str) -> dict[str, object]:
    """The JSON object that an annotation holds. Raises InvalidConfig."""
    try:
        held = _JSON.read(text)
    except ValueError as error:
        raise refusal(f"annotation '{name}' is not JSON: {error}", f"it must look like {example}") from None
    if not isinstance(held, dict):
        raise refusal(f"annotation '{name}' is {text!r}, not a JSON object", f"it must look like {example}")
    return held


def _read_repr(text: str) -> dict[str, object]:
    """An object of plain texts as Python writes a dict, which OVN's tools did before they wrote JSON; {} for any other text."""
    inside = text.strip()
    if not (inside.startswith("{") and inside.endswith("}")):
        return {}
    inside, held, at = inside[1:-1], {}, 0
    while at < len(inside):
        item = _REPR_ITEM.match(inside, at)
        if item is None or item[2] in held:
            return {}
        held[item[2]] = item[4]
        at = item.end()
    return dict[str, object](held)

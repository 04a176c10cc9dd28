"""Device metadata of a ResourceClaim: where a DRA driver says that a network's socket is. Pure.

A driver for vhost-user ports publishes two attributes of the device that it allocated: `vhost-user-path` (string: the socket as
the compute container sees it) and `mtu` (int: the port's), as ovsdpdk.k8snetworkplumbingwg.io does; others may. Kubernetes
(KEP-5304) has the driver write them to a file that every container with the claim gets mounted, below /var/run/kubernetes.io/
dra-device-attributes:

    resourceclaimtemplates/<claim of the pod>/<request>/<driver>-metadata.json     a claim made from a template
    resourceclaims/<ResourceClaim>/<request>/<driver>-metadata.json               a claim named by the VM
    <claim of the pod>/<request>/metadata.json                                   early drivers

The file is a stream of objects with one content in several versions, newest first; the first of a known version is read. Because
drivers differ, these are accepted: a qualified attribute name (<domain>/mtu), a value that is not wrapped ({"int": 1500} or
1500), no `mtu`, more requests and devices beside ours. The MAC of `networkData.hardwareAddress` is taken where a driver gives
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubevirt.interface_mac import read_mac
from kubevirt.json_input import decode_stream, read_typed
from kubevirt.network_info import read_mtu
from kubevirt.sidecar_errors import BadInput

VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
PATH: Final = "vhost-user-path"
MTU: Final = "mtu"
REMEDY: Final = "look at the DRA driver's log on this node and at its version: it wrote the file"


@dataclass(frozen=True)
class Device:
    """The one device of a request that is a vhost-user port. `driver` is for messages; `mac` is "" when it tells none."""

    path: str
    mtu: int | None = None
    mac: str = ""
    driver: str = ""


def read_metadata(text: bytes | str, request: str, where: str) -> Device | None:
    """Read the vhost-user port of `request` ("" for any); None when no device there has a socket. Raises BadInput.

    `where` names the file in messages.
    """
    found: dict[str, Device] = {}
    for device, path in _devices(_known_version(text, where), request, where):
        port = _read_device(device, path)
        if port:
            found.setdefault(port.path, port)
    if len(found) > 1:
        raise BadInput(f"{where}: several devices of request {request!r} have a socket: {', '.join(found)[:300]}", REMEDY)
    return next(iter(found.values()), None)


def _known_version(text: bytes | str, where: str) -> Mapping[str, Any]:
    versions = []
    for value in decode_stream(text, where, REMEDY):
        root = read_typed(value, dict, where, REMEDY)
        version = _get(root, "apiVersion", str, where) or ""
        if version in VERSIONS:
            return root
        versions.append(version or "none")
    raise BadInput(
        f"{where} has no object of a known version ({', '.join(VERSIONS)}); it has: {', '.join(versions)[:200]}", REMEDY
    )


def _devices(root: Mapping[str, Any], request: str, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Devices with their JSON paths. A request with alternatives is named <request>/<alternative> once it is allocated."""
    requests: list[Any] = _get(root, "requests", list, where) or []
    for number, entry in enumerate(requests):
        path = f"{where}: requests[{number}]"
        raw = read_typed(entry, dict, path, REMEDY)
        name: str = _get(raw, "name", str, path) or ""
        if request and name.partition("/")[0] != request:
            continue
        devices: list[Any] = _get(raw, "devices", list, path) or []
        for index, device in enumerate(devices):
            yield read_typed(device, dict, f"{path}.devices[{index}]", REMEDY), f"{path}.devices[{index}]"


def _read_device(raw: Mapping[str, Any], where: str) -> Device | None:
    attributes: Mapping[str, Any] = _get(raw, "attributes", dict, where) or {}
    path: str | None = _attribute(attributes, PATH, ("string", str), where)
    if not path:
        return None
    network: Mapping[str, Any] = _get(raw, "networkData", dict, where) or {}
    address: str = _get(network, "hardwareAddress", str, f"{where}.networkData") or ""
    return Device(
        path=path,
        mtu=read_mtu(_attribute(attributes, MTU, ("int", int), where), f"{where}: attribute {MTU}", REMEDY),
        mac=read_mac(address, f"{where}.networkData.hardwareAddress", REMEDY),
        driver=_get(raw, "driver", str, where) or "",
    )


def _attribute(attributes: Mapping[str, Any], name: str, form: tuple[str, type[Any]], where: str) -> Any:
    """The value of `name`, its own before a qualified one; None without one. `form`: key of the wrapped value, its type."""
    names = [name] if name in attributes else sorted(key for key in attributes if key.rpartition("/")[2] == name)
    key, kind = form
    values = []
    for each in names:
        value = attributes[each]
        if isinstance(value, dict):
            value = value.get(key)
        values.append(read_typed(value, kind, f"{where}: attribute {each[:64]}", REMEDY))
    if len(set(values)) > 1:
        raise BadInput(f"{where}: attributes {', '.join(names)[:200]} differ", REMEDY)
    return values[0] if values else None


def _get(raw: Mapping[str, Any], key: str, kind: type[Any], where: str) -> Any:
    value = raw.get(key)
    return None if value is None else read_typed(value, kind, f"{where}.{key}", REMEDY)

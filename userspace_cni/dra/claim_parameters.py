"""A claim's opaque parameters as a network: the keys of a network's `host`, `container`, limits and mirrors. Pure.

    apiVersion: userspace-cni.io/v1alpha1
    kind: InterfaceParameters
    host: {mtu: 9000, bridge: {vlanId: 7}}
    bandwidth: {ingressRate: 1000000000}

Those of the class are an administrator's, those of the claim a tenant's. So the claim adds to what its class says, and cannot
change it. What a key means, and which values it can have, is the reader's of networks; what a namespace may have, the rules'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, UnsupportedField
from userspace_cni.cni import keys
from userspace_cni.cni.json_values import read_typed
from userspace_cni.dra.claim_objects import Parameters

API_VERSION: Final = "userspace-cni.io/v1alpha1"
KIND: Final = "InterfaceParameters"
TAKEN: Final = ("bandwidth", "consumer", "container", "host", "logLevel", "mirrorOutput", "mirrors")
"""The keys at the top that a claim may have. The others are about the runtime, its credentials, addresses or logical ports."""
WHOLE: Final = (
    ("host.bridge", ("vlanId", "trunks", "vlanMode")),
    ("bandwidth", ("ingressRate", "ingressBurst")),
    ("bandwidth", ("egressRate", "egressBurst")),
)
"""Keys of one object that say one thing together: a VLAN with another mode is other VLANs, a rate with a huge burst no limit."""
_HEADER: Final = ("apiVersion", "kind")


def network_of(parameters: Iterable[Parameters], bridge: str) -> dict[str, Any]:
    """The keys of a network that all of them together say, with the bridge of the device.

    Raises InvalidConfig, UnsupportedField or Undecodable for what they cannot say.
    """
    of_class: dict[str, Any] = {}
    of_claim: dict[str, Any] = {}
    for each in parameters:
        said = _read(each)
        if each.source == "FromClaim":
            of_claim = _merged(of_claim, said, "", "other parameters of the claim say")
        else:
            of_class = _merged(of_class, said, "", "other parameters of the class say")
    _require_unchanged(of_class, of_claim)
    network = _merged(of_class, of_claim, "", "the claim's class says")
    host = read_typed(network, "host", dict, {})
    on_bridge = read_typed(host, "bridge", dict, {}, path="host.")
    said = on_bridge.get("bridgeName")
    if said not in (None, "", bridge):
        raise InvalidConfig(
            f"key 'host.bridge.bridgeName' is {said!r} in the parameters of a claim whose device is of bridge {bridge!r}",
            "leave it out: select the device by its attribute 'bridge'",
        )
    return {**network, "host": {**host, "bridge": {**on_bridge, "bridgeName": bridge}}}


def _read(parameters: Parameters) -> dict[str, Any]:
    """One object's keys, spelled as the table of keys spells them. Unknown keys below the top stay, for the reader to judge."""
    raw = parameters.value
    version, kind = (raw.get(key) for key in _HEADER)
    if (version, kind) != (API_VERSION, KIND):
        raise UnsupportedField(
            f"parameters of the claim have apiVersion {version!r} and kind {kind!r}", f"they must be {API_VERSION} and {KIND}"
        )
    found = _spelled({key: value for key, value in raw.items() if key not in _HEADER}, "")
    refused = sorted(key for key in found if key not in TAKEN)
    if refused:
        raise UnsupportedField(
            f"key {refused[0][:80]!r} cannot be in the parameters of a claim", f"they can have {', '.join(TAKEN)}"
        )
    return found


def _spelled(raw: Mapping[str, Any], place: str) -> dict[str, Any]:
    known = keys.PLACES.get(place, ())
    found = keys.normalize_keys(raw, known, place)
    canonical = {key.lower() for key in known}
    found |= {key: value for key, value in raw.items() if keys.fold_case(key) not in canonical}
    return {
        key: _spelled(value, keys.path_of(place, key))
        if isinstance(value, dict) and keys.path_of(place, key) in keys.PLACES
        else value
        for key, value in found.items()
    }


def _require_unchanged(of_class: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Raises InvalidConfig where the claim gives what its class says another meaning, by a key beside."""
    for place, names in WHOLE:
        before, then = _object_at(of_class, place), _object_at(said, place)
        fixed = [name for name in names if before.get(name) is not None]
        added = [name for name in names if name in then and name not in before]
        if fixed and added:
            raise InvalidConfig(
                f"key '{place}.{added[0]}' of the claim's parameters is beside '{place}.{fixed[0]}', which its class says",
                "these keys say one thing together, and the class has said it: leave the key out, or ask for another class",
            )


def _object_at(network: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    found: Any = network
    for name in place.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _merged(first: Mapping[str, Any], then: Mapping[str, Any], place: str, whose: str) -> dict[str, Any]:
    """Both together. Raises InvalidConfig where the second says another thing than the first, which `whose` names."""
    together = dict(first)
    for key, value in then.items():
        before = together.get(key)
        path = keys.path_of(place, key)
        if isinstance(before, dict) and isinstance(value, dict):
            together[key] = _merged(before, value, path, whose)
        elif before is not None and before != value:
            raise InvalidConfig(
                f"key {path!r} of the claim's parameters differs from what {whose}: {before!r}",
                "say it once; what a class says holds for its claims: leave the key out, or ask for another class",
            )
        else:
            together[key] = value
    return together

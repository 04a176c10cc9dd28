"""How the keys of a network's configuration are spelled, and which known key a misspelt one is meant to be. Pure.

An ignored misspelt key would attach a pod to another network than its author meant. So a key that is unknown and nearly a known
one of its place is refused. No other key is refused: keys that are known at another place, and those of the CNI specification, of
other CNI plugins, of the former plugin and its forks are in manifests that work. Other unknown keys cause a warning.

Keys match without regard to case, as the former plugin's did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.mirrors import MIRRORS_MAX
from userspace_cni.base.misspelt import is_within
from userspace_cni.cni.network_keys import TABLE, names

TOP: Final = names("", standard=False)
STANDARD: Final = names("", standard=True)
"""Keys at the top, of the CNI specification and of Multus: read under exactly these names, and never warned of as unknown."""
BANDWIDTH: Final = tuple(key.name for key in TABLE if key.place == "bandwidth" and key.kind is int)
PARTIAL: Final = tuple(key.name for key in TABLE if key.place == "bandwidth" and key.kind is list)
"""Keys of the bandwidth plugin by which its limits hold for a part of the traffic."""
_WRITTEN: Final = {key.lower(): key for key in ("ipam", "ipMasq", "dns", "args", "runtimeConfig", "deviceID")}
"""Those of them that decide about the interface. Libraries take them in any case, and programs that look for them do not: so one
in another spelling is refused, for its author expects what would not be."""
_PARTS: Final = ("vhost", "bridge")
PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (*TOP, *STANDARD),
    **{place: names(place) for place in ("bandwidth", "netem", "mirrors", "ovn")},
    **{place: names(place) for side in ("host", "container") for place in (side, *(f"{side}.{part}" for part in _PARTS))},
}
"""The known keys of each object of ours, or of each object of a list, whose keys are compared."""
MARKED: Final = "cni.dev/"
"""The prefix of keys that a runtime adds."""

_LISTED: Final = "mirrors"
_BLOCKS: Final = ("bandwidth", "netem", "ovn", _LISTED)
_OF_ADDRESSES: Final = frozenset(key.name.lower() for key in TABLE if not key.place and "ipam.type" in key.beside)
"""Keys at the top that concern the addresses of `ipam`: their author may have written them there, where an IPAM plugin that does
not know them passes over them."""
_LEFT_OUT: Final[Mapping[str, str]] = {part: f"host.{part}" for part in _PARTS}
"""Blocks of `host` that are also compared at the top: their author may have forgotten `host`."""
_OTHERS: Final = (
    *("role", "ingressPolicingRate", "ingressPolicingBurst", "OvnPort"),
    *("plugins", "delegates", "device", "resourceName", "ipMasqBackend"),
)
"""Keys of the former plugin and its forks that have no meaning here, and of other CNI plugins: manifests are copied with them."""
_KUBEOVN: Final = ("server_socket", "provider", "vf_driver")
"""Keys of kube-ovn's plugin that ask for nothing that a port here could have or lack: docs/network.md names them, and a call does
not."""
_LIMIT: Final = "no limit is set; write 'bandwidth' at the top, with 'egressRate' in bit/s (not kbit/s) for what the pod sends"
_INSTEAD: Final[Mapping[str, str]] = {
    "ingresspolicingrate": _LIMIT,
    "ingresspolicingburst": _LIMIT,
    "ovnport": "the interface is no logical port of OVN; write 'ovn': {}, or 'OvnPort' into 'args.cni' of one pod",
    "vlan": "no VLAN is set; write 'host.bridge.vlanId'",
    "trunk": "no VLANs are set; write 'host.bridge.trunks'",
    "routes": "no routes are set; write 'ipam.routes'",
    "vhost_user_socket_volume_name": "the pod's volume is the one that the node's setting shared_volume names",
    "vhost_user_socket_name": "the socket has its usual name; write 'host.vhost.socketfile'",
    "vhost_user_socket_consumption": "the socket is made for an application of the pod; for VMs write 'consumer': 'kubevirt'",
}
"""Keys of forks of the former plugin, ovs-cni and kube-ovn's plugin that have no effect here: what is so, and
what to write."""
_SHORTEST: Final = 5
_EDITS: Final = 2
_LOOKED_AT: Final = 1000
"""Unknown keys of one object that are compared: an agent must not be kept busy with them."""
_WARNED_OF: Final = 10
"""Unknown keys of a network that are named: each is a line of the log."""


class Misspelt(InvalidConfig):
    """A key that is nearly a known one. `place`, `key`: where and how it is written; `meant`: the known key with its path."""

    def __init__(self, place: str, key: str, meant: str) -> None:
        super().__init__(
            f"key '{path_of(place, key)}' is unknown: '{meant}' is probably meant",
            "correct the spelling, or remove the key",
        )
        self.place = place
        self.key = key
        self.meant = meant


def path_of(place: str, key: str) -> str:
    """The key with the names of the objects that hold it, as `host.vhost.mode`."""
    return f"{place}.{key}" if place else key


def fold_case(key: str) -> str:
    """A key for comparing without regard to case. Letters beyond ASCII match none (lower() turns U+212A into "k"): a program that
    searches a network's text for a key, as an admission policy does, must find it."""
    return key.lower() if key.isascii() else key


def normalize_keys(raw: Mapping[str, Any], known: Iterable[str], place: str) -> dict[str, Any]:
    """`raw` with the keys of `known` in canonical spelling; others are left out. Raises InvalidConfig for one given twice."""
    canonical = {key.lower(): key for key in known}
    found: dict[str, Any] = {}
    for key, value in raw.items():
        name = canonical.get(fold_case(key))
        if name in found:
            raise InvalidConfig(
                f"key '{path_of(place, name)}' is given in two spellings", "keys match without regard to case: keep one"
            )
        if name is not None:
            found[name] = value
    return found


def args_cni(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object `args.cni`; what is none says nothing: other programs have conventions of their own for `args`."""
    args = raw.get("args")
    cni = args.get("cni") if isinstance(args, dict) else None
    return cni if isinstance(cni, dict) else {}


def check(raw: Mapping[str, Any], warn: Callable[[str], object]) -> None:
    """Raise Misspelt for the first misspelt key; call `warn` for the first few other unknown ones."""
    objects = [(place, unknown) for place, held in _objects(raw) if (unknown := _unknown(place, held))]
    objects += [("ipam", found) for _, held in _held(raw, ("ipam",)) if (found := _of_addresses(held))]
    for place, unknown in objects:
        for key in unknown[:_LOOKED_AT] if place in PLACES else ():
            if meant := guess_key(place, key) or ("" if place else _written(key)):
                raise Misspelt(place, key, meant)
    first = [(place, key) for place, unknown in objects for key in unknown[:_WARNED_OF]][:_WARNED_OF]
    for place, key in first:
        warn(f"key '{path_of(place, key)}' is unknown and ignored{_elsewhere(place, key)}")
    if more := sum(len(unknown) for _, unknown in objects) - len(first):
        warn(f"{more} more keys beside '{path_of(*first[0])}' are unknown and ignored")


def guess_key(place: str, key: str) -> str:
    """The path of the known key from which an unknown one of that place differs by one or two letters; "" for none."""
    name = fold_case(key)
    if len(name) < _SHORTEST or not name[0].isalnum() or name.startswith(MARKED) or name in _ALLOWED:
        return ""
    candidates = {known.lower(): path_of(place, known) for known in PLACES[place]}
    if not place:
        candidates |= _LEFT_OUT
    for edits in range(1, _EDITS + 1):
        for known, meant in candidates.items():
            if is_within(name, known, edits):
                return meant
    return ""


def _written(key: str) -> str:
    """How the specification writes a key at the top that is written otherwise, if it decides about the interface; else ""."""
    return _WRITTEN.get(fold_case(key), "")


_ALLOWED: Final = frozenset(key.lower() for keys in (*PLACES.values(), _OTHERS, _KUBEOVN) for key in keys)


def _objects(raw: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each object that we read, with its place. `options` refuses what is no object."""
    yield "", raw
    for block, held in _held(raw, ("host", "container")):
        yield block, held
        for part, below in _held(held, _PARTS):
            yield path_of(block, part), below
    yield from _held(raw, _BLOCKS)


def _held(raw: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of these names, and those in the one list that we read."""
    for key, value in raw.items():
        name = fold_case(key)
        if name in names:
            listed = name == _LISTED and isinstance(value, list) and len(value) <= MIRRORS_MAX
            yield from ((name, held) for held in (value if listed else [value]) if isinstance(held, Mapping))


def _unknown(place: str, held: Mapping[str, Any]) -> list[str]:
    if place:
        known = {key.lower() for key in PLACES[place]}
        return [key for key in held if fold_case(key) not in known]
    ours = {key.lower() for key in (*TOP, *_KUBEOVN)}
    return sorted(key for key in held if key not in STANDARD and fold_case(key) not in ours and not key.startswith(MARKED))


def _of_addresses(ipam: Mapping[str, Any]) -> list[str]:
    """The keys of an `ipam` that are ours, and belong beside it; the IPAM plugin judges the others."""
    return sorted(key for key in ipam if fold_case(key) in _OF_ADDRESSES)


def _elsewhere(place: str, key: str) -> str:
    """The rest of the warning where the key is known in another spelling, at another place or in other programs; else ""."""
    name = fold_case(key)
    if name in _INSTEAD:
        return f": {_INSTEAD[name]}"
    if not place and (standard := next((each for each in STANDARD if each.lower() == name), "")):
        return f": the CNI specification writes '{standard}'"
    if place and (known := next((each for each in PLACES[""] if each.lower() == name), "")):
        return f" here: '{known}' belongs at the top of the network"
    places = [path_of(other, known) for other, keys in PLACES.items() if other for known in keys if known.lower() == name]
    return f" here: write it as '{places[0]}'" if places else ""

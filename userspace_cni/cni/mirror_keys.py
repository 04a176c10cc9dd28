"""Of which mirrors a network or a pod makes an interface a source, and of which an output. Pure.

Only names and directions are decided here: whether a namespace may have them is the administrator's rules'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.mirrors import MIRRORS_MAX, NAME, MirrorSource
from userspace_cni.cni import keys
from userspace_cni.cni.annotations import PodInterface, refusal
from userspace_cni.cni.json_values import read_typed
from userspace_cni.cni.network_keys import read

KUBEOVN_MIRROR: Final = "m0"
"""The mirror that kube-ovn's annotation means: it has one, of this name."""

_OURS: Final = ("from", "to")
_THEIRS: Final = ("ingress", "egress")
_OWN: Final = "userspace/mirror"
_EXAMPLE: Final = '{"net1": "ids"}'


def read_mirrors(top: Mapping[str, Any], warn: Callable[[str], object]) -> tuple[MirrorSource, ...]:
    """Read `mirrors` of a network; `warn` is called for ovs-cni's names of directions."""
    items = read_typed(top, "mirrors", list, [])
    if len(items) > MIRRORS_MAX:
        raise InvalidConfig(f"key 'mirrors' has {len(items)} items", f"an interface can be in {MIRRORS_MAX} at most")
    mirrors = tuple(_read_source(item, warn) for item in items)
    names = [mirror.name for mirror in mirrors]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise InvalidConfig(f"key 'mirrors' holds {twice!r} twice", "name each mirror once, with its directions")
    return mirrors


def read_mirror_output(top: Mapping[str, Any], mirrors: tuple[MirrorSource, ...]) -> str:
    """Read `mirrorOutput`: the mirror whose output the interface is, "" for none. An output is no source of any."""
    name: str = read(top, "mirrorOutput") or ""
    if not name:
        return ""
    if mirrors:
        raise InvalidConfig(
            f"key 'mirrorOutput' is {name!r} beside 'mirrors' with {mirrors[0].name!r}: what an output sends is dropped",
            "leave one of the two out",
        )
    return name


def mirrors_of(
    annotations: Mapping[str, str], interface: PodInterface, network: tuple[MirrorSource, ...], outputs: Sequence[str]
) -> tuple[MirrorSource, ...]:
    """The mirrors of which the interface is a source: those of its network, then those that the pod's annotations join.

    `userspace/mirror` joins with both directions, kube-ovn's as it does, with what goes to the pod. A mirror of the network keeps
    its directions. `outputs`: those whose output it is, which no annotation can join to another. Raises InvalidConfig.
    """
    joined = _own_mirrors(annotations, interface)
    name, value = interface.kubeovn(annotations, "mirror")
    if value not in ("", "true", "false"):
        raise refusal(f"annotation '{name}' is {value!r}", "it can be 'true' or 'false'")
    if value == "true":
        joined = (*joined, MirrorSource(KUBEOVN_MIRROR, from_pod=False))
    if joined and outputs:
        raise refusal(
            f"annotations make {interface.ifname} a source of mirror {joined[0].name!r}: it is the output of {outputs[0]!r}",
            "remove the annotation: what an output sends is dropped",
        )
    found = {mirror.name: mirror for mirror in network}
    for mirror in joined:
        found.setdefault(mirror.name, mirror)
    return tuple(found.values())


def _own_mirrors(annotations: Mapping[str, str], interface: PodInterface) -> tuple[MirrorSource, ...]:
    said = interface.own(annotations, _OWN, _EXAMPLE)
    if not said:
        return ()
    names = said if isinstance(said, list) else [said]
    if len(names) > MIRRORS_MAX:
        raise refusal(f"annotation '{_OWN}' names {len(names)} mirrors for {interface.ifname}", f"{MIRRORS_MAX} are possible")
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise refusal(
                f"annotation '{_OWN}': its value for {interface.ifname} is {said!r}",
                f"it must be the name of a mirror, or a list of names, such as {_EXAMPLE}",
            )
    return tuple(MirrorSource(name) for name in dict.fromkeys(names))


def _read_source(item: object, warn: Callable[[str], object]) -> MirrorSource:
    if not isinstance(item, dict):
        raise InvalidConfig(f"key 'mirrors' holds {item!r}", 'it must be objects as {"name": "ids", "from": true, "to": true}')
    said = keys.normalize_keys(item, keys.PLACES["mirrors"], "mirrors")
    name: str = read(said, "mirrors.name")
    ours, theirs = ([read_typed(said, key, bool, None, path="mirrors.") for key in pair] for pair in (_OURS, _THEIRS))
    foreign = theirs != [None, None]
    if foreign and ours != [None, None]:
        raise InvalidConfig(f"key 'mirrors' holds {item!r}: directions in two languages", "keep 'from' and 'to'")
    if foreign:
        from_pod, to_pod = map(bool, theirs)
        warn(f"key 'mirrors' holds {name!r} with 'ingress' or 'egress', read as ovs-cni means them: ingress is from the pod")
    else:  # one that is said alone says of the other that it is not
        from_pod, to_pod = (mine if mine is not None else other is not True for mine, other in (ours, ours[::-1]))
    if not (from_pod or to_pod):
        raise InvalidConfig(f"key 'mirrors' holds {item!r}, no direction", "say 'from' or 'to', or leave both out for both")
    return MirrorSource(name, from_pod, to_pod)

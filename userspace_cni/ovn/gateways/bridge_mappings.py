"""`external_ids:ovn-bridge-mappings` of Open_vSwitch: which bridge of a chassis leads to which network outside. Pure.

It has mappings of others, too, which stay. Ours are listed in a key of their own, written with it, so that only they are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from userspace_cni.base.errors import NameTaken
from userspace_cni.ovn.chassis_ids import SYSTEM_ID

MAPPINGS: Final = "ovn-bridge-mappings"
OURS: Final = "userspace-cni-bridge-mappings"


def read_mappings(ids: Mapping[str, str]) -> dict[str, str]:
    """The bridge of each network, as ovn-controller reads them."""
    return _parse(ids.get(_key(ids), ""))


def choose_network(bridge: str, ids: Mapping[str, str]) -> str:
    """What OVN is to call the network behind the bridge: as it does, else as the bridge."""
    return next((network for network, each in read_mappings(ids).items() if each == bridge), bridge)


def plan_mappings(ids: Mapping[str, str], needed: Collection[str], added: Mapping[str, str]) -> dict[str, str]:
    """The keys to write so that the chassis has the mappings `added`, and of ours only those of networks that are `needed`.

    An empty value removes a key. Raises NameTaken where a network leads to another bridge already, and not by us.
    """
    ours = _parse(ids.get(OURS, ""))
    words = [each.strip() for each in ids.get(_key(ids), "").split(",") if each.strip()]
    pairs = [(network, bridge, word) for word in words for network, _, bridge in (word.partition(":"),)]
    others = {network for network, bridge, _ in pairs if network and bridge and ours.get(network) != bridge}
    for network, there, _ in pairs:
        if network in others and added.get(network, there) != there:
            raise NameTaken(
                f"external_ids:{_key(ids)} has the network {network} on bridge {there}, and it is to be on {added[network]}",
                "--network gives it another name",
            )
    kept = {network: bridge for network, bridge in ours.items() if network in needed and network not in others}
    mine = {network: bridge for network, bridge in {**kept, **added}.items() if network not in others}
    whole: list[str] = []  # what others wrote stays as they wrote it, also what cannot be read, and a network that is there twice
    left = dict(mine)
    for network, bridge, word in pairs:
        if network in others or not (network and bridge):
            whole.append(word)
        elif network in left:
            whole.append(f"{network}:{left.pop(network)}")
    whole += [f"{network}:{bridge}" for network, bridge in left.items()]
    wanted = {_key(ids): ",".join(whole), OURS: _text(mine)}
    return {key: value for key, value in wanted.items() if ids.get(key, "") != value}


def _key(ids: Mapping[str, str]) -> str:
    """The key that counts: one that names the chassis precedes."""
    own = f"{MAPPINGS}-{ids.get(SYSTEM_ID, '')}"
    return own if own in ids else MAPPINGS


def _parse(text: str) -> dict[str, str]:
    pairs = (each.strip().partition(":") for each in text.split(","))
    return {network: bridge for network, _, bridge in pairs if network and bridge}


def _text(mappings: Mapping[str, str]) -> str:
    return ",".join(f"{network}:{bridge}" for network, bridge in mappings.items())

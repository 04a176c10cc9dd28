"""Owner marks: the external_ids that name the owner of a row. No row without our mark is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from userspace_cni.attachment.steps import (
    MARK_SCHEMA,
    OWNER,
    OWNER_KIND,
    MirrorOutput,
    NodeBridge,
    OvsPort,
    UplinkPort,
    is_attached,
    owner_kind,
)
from userspace_cni.base.errors import NameTaken

IDENTITY = ("owner", "container-id", "network", "ifname", "run", "spec")
"""The marks that identify the attachment of a port, the run of a probe's, or the spec of a node attachment."""

Owned = MirrorOutput | NodeBridge | OvsPort | UplinkPort
"""A step that writes rows with marks."""

BridgeMaker = Literal["", "pods", "node", "another"]
"""Who made a bridge: attachments of pods, which delete it with its last port, the node's own network, or another; "" for none
that is there."""

IFINDEX = "ifindex"
"""The mark of a kernel port: the index of the link that ovs-vswitchd has opened, which a link made anew has not."""

FORMER_MTU = "former-mtu"
FORMER_OFFLOADS = "former-offloads"
"""The marks of an uplink's NIC: its MTU before another was asked for, and those of gro and lro that were on, with a comma
between. A record that was lost is made again with them."""
MOVES_ADDRESSES = "moves-addresses"
"""The mark of an uplink's NIC whose addresses are to move to the bridge. Those of the bridge are the NIC's then, also where the
record and the NIC's cut have both been lost."""

ATTACHED_MAC = "attached-mac"
"""The key of Interface.external_ids with the MAC of what is behind the port (ovs-vswitchd.conf.db(5)); no owner mark."""

_OF_POD = ("pod-namespace", "pod-name", "pod-uid", "vm-name")
MARKS = (
    *IDENTITY,
    OWNER_KIND,
    "schema",
    "boot-id",
    "netns",
    "netns-inode",
    "store",
    *_OF_POD,
    IFINDEX,
    FORMER_MTU,
    FORMER_OFFLOADS,
    MOVES_ADDRESSES,
)
"""Every mark that we write; other keys of external_ids are another program's and stay as they are."""


def marks_of(step: Owned, store: str) -> dict[str, str]:
    """The marks to write: the step's own, with owner, schema and the id of our state directory."""
    return {"owner": OWNER, OWNER_KIND: "pod", "schema": MARK_SCHEMA, "store": store} | dict(step.marks)


def select_marks(external_ids: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in external_ids.items() if key in MARKS}


def is_ours(marks: Mapping[str, str]) -> bool:
    """Whether the row was made for a pod, by a network or a claim, by this or another installation."""
    return is_attached(marks)


def find_maker(marks: Mapping[str, str]) -> BridgeMaker:
    return "pods" if is_ours(marks) else "node" if is_nodes(marks) else "another"


def is_nodes(marks: Mapping[str, str]) -> bool:
    """Whether the row is of a node attachment, of this or another installation."""
    return owner_kind(marks) == "node"


def is_same_kind(wanted: Mapping[str, str], marks: Mapping[str, str]) -> bool:
    """Whether a row with these marks is ours, for the same kind of owner as that with the `wanted` ones."""
    return owner_kind(marks) == owner_kind({"owner": OWNER} | dict(wanted))


def owns(wanted: Mapping[str, str], marks: Mapping[str, str]) -> bool:
    """The rule of ownership: whether the owner with the `wanted` marks may change or delete a row with these marks.

    It was made for the same container, network and interface name, run, or spec, and by no other state directory.
    """
    is_of_other = marks.get("store") and wanted.get("store") and marks["store"] != wanted["store"]
    named = {"owner": OWNER} | dict(wanted)
    return not is_of_other and is_same_kind(wanted, marks) and all(marks.get(key) == named.get(key) for key in IDENTITY)


def require_own(wanted: Mapping[str, str], marks: Mapping[str, str], what: str, hint: str) -> None:
    """Raise NameTaken unless the owner owns the row with these marks; `what` it is, as "port p exists and"."""
    if not owns(wanted, marks):
        raise NameTaken(f"{what} belongs to {describe_owner(marks)}", hint)


def select_identity(marks: Mapping[str, str]) -> dict[str, str]:
    """Those of the marks that identify the owner."""
    return {key: value for key, value in ({"owner": OWNER} | dict(marks)).items() if key in IDENTITY}


def describe_owner(marks: Mapping[str, str]) -> str:
    """The owner of a row, for messages."""
    if is_nodes(marks):
        return f"{OWNER}: {marks.get('spec', 'the node')}, store {marks.get('store') or 'unknown'}"
    if not owner_kind(marks):
        return f"owner {marks['owner']!r}" if marks.get("owner") else "an owner that does not mark its rows"
    names = ", ".join(f"{key} {marks[key]}" for key in ("container-id", "network", "ifname", "run", "store") if marks.get(key))
    return f"{OWNER}: {names or 'unnamed'}"

"""Owners: who a record, and a row of OVSDB, is for. Each row that we make has the marks of its owner in external_ids.

A pod's interface is named by container, network and interface name; a device of a claim in the same way, with what stands for the
container; what the node itself is to have by its spec; what a command makes for a while by its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast, get_args

OwnerKind = Literal["pod", "claim", "node", "run"]
OWNER: Final = "userspace-cni"
"""Value of the mark `owner` on every row that we make."""
OWNER_KIND: Final = "owner-kind"
"""The mark with the kind of the owner. A row without it is a pod's."""
MARK_SCHEMA: Final = "1"
CLAIM: Final = "_"
"""What the container ID of a claim's device begins with, as no container's can; the claim's UID follows."""


def owner_marks(container_id: str, network: str, ifname: str) -> dict[str, str]:
    names = {"container-id": container_id, "network": network, "ifname": ifname}
    kind: OwnerKind = "claim" if container_id.startswith(CLAIM) else "pod"
    return {"owner": OWNER, OWNER_KIND: kind, "schema": MARK_SCHEMA, **names}


def node_marks(kind: str, name: str, store: str) -> dict[str, str]:
    """The marks by which a row is recognised as that of this spec, of the installation with that state directory.

    No sweep by boot id or by GC touches such a row.
    """
    return {"owner": OWNER, OWNER_KIND: "node", "store": store, "spec": f"{kind} {name}"}


def run_marks(run: str, store: str) -> dict[str, str]:
    """The marks by which a row is recognised as made by this run of a command, which names its process."""
    return {"owner": OWNER, OWNER_KIND: "run", "store": store, "run": run}


def is_attached(marks: Mapping[str, str]) -> bool:
    """Whether we have made the row for a pod, by a network or by a claim, in this or another installation."""
    return owner_kind(marks) in ("pod", "claim")


def owner_kind(marks: Mapping[str, str]) -> OwnerKind | Literal[""]:
    """For whom we have made a row with these marks, in this or another installation; "" for a row of others."""
    if marks.get("owner") != OWNER:
        return ""
    found = marks.get(OWNER_KIND, "pod")
    return cast("OwnerKind", found) if found in get_args(OwnerKind) else ""

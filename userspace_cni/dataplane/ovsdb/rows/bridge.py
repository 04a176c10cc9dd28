"""The columns of a bridge that we make, and of its local port."""

from __future__ import annotations

from typing import Final

from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.dataplane.ovsdb.rows.columns import Columns

DATAPATH_TYPE: Final[Datapath] = "netdev"
"""The datapath type of bridges that can have DPDK ports."""


def datapath_of(datapath_type: str) -> str:
    """The datapath that a value of Bridge.datapath_type means."""
    return datapath_type or "system"


def bridge_columns(name: str, datapath_type: str) -> Columns:
    """Columns of a Bridge that we make."""
    return {"name": name, "datapath_type": datapath_type, "external_ids": {"owner": OWNER}}


def local_port_columns(bridge: str) -> tuple[Columns, Columns]:
    """Columns of the Port and the Interface that stand for the bridge itself, as ovs-vsctl add-br makes them."""
    return {"name": bridge}, {"name": bridge, "type": "internal"}

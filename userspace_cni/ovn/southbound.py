"""The part of OVN's southbound database that is read here: chassis, and what is bound where. Nothing here writes it.

ovn-northd and the controllers own it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from userspace_cni.ovsdb.client import Client, Session
from userspace_cni.ovsdb.database import BOOLEAN_OR_NONE, MAP, REFERENCE_OR_NONE, REFERENCES, STRING, Database, Tls, Type

GLOBAL: Final = "SB_Global"
CHASSIS: Final = "Chassis"
ENCAP: Final = "Encap"
PORT_BINDING: Final = "Port_Binding"

_TABLES: Final[Mapping[str, Mapping[str, Type]]] = {
    GLOBAL: {"nb_cfg": "integer"},
    CHASSIS: {"name": STRING, "hostname": STRING, "encaps": REFERENCES, "external_ids": MAP},
    ENCAP: {"type": STRING, "ip": STRING, "options": MAP},
    PORT_BINDING: {"logical_port": STRING, "chassis": REFERENCE_OR_NONE},
}
_OPTIONAL: Final[Mapping[str, Mapping[str, Type]]] = {
    CHASSIS: {"other_config": MAP},
    PORT_BINDING: {"up": BOOLEAN_OR_NONE},
}


class SouthboundIndex:
    """Keeps nothing beside the rows."""

    def show(self, table: str, name: str, row: Any) -> None:
        """Nothing: rows are found in the session."""

    def lose(self) -> None:
        """Nothing: the command fails."""

    def change(self, table: str, event: str, row: Any, former: Any) -> None:
        """Nothing: commands look once."""


SouthboundSession: TypeAlias = Session[SouthboundIndex]
SouthboundClient: TypeAlias = Client[SouthboundIndex]

SOUTHBOUND: Final[Database[SouthboundIndex]] = Database(
    name="OVN_Southbound",
    root=GLOBAL,
    tables=_TABLES,
    index=lambda _everything: SouthboundIndex(),
    named=frozenset({CHASSIS}),
    optional=_OPTIONAL,
    lasting=frozenset({CHASSIS}),
    unique=frozenset({CHASSIS}),
    setting="ovn_sb",
    initialise="ovn-sbctl init",
)


def southbound_client(remote: str, *, tls: Tls | None = None) -> SouthboundClient:
    """The client of the southbound database at `remote`, with all rows that are described."""
    return Client(remote, SOUTHBOUND, resident=True, tls=tls)

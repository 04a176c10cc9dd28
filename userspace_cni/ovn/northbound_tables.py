"""The names of tables of OVN's northbound database. Importing it costs nothing."""

from __future__ import annotations

from typing import Final

GLOBAL: Final = "NB_Global"
CONNECTION: Final = "Connection"
SWITCH: Final = "Logical_Switch"
SWITCH_PORT: Final = "Logical_Switch_Port"
ROUTER: Final = "Logical_Router"
ROUTER_PORT: Final = "Logical_Router_Port"
STATIC_ROUTE: Final = "Logical_Router_Static_Route"
NAT: Final = "NAT"
LOAD_BALANCER: Final = "Load_Balancer"
LOAD_BALANCER_GROUP: Final = "Load_Balancer_Group"
ACL: Final = "ACL"
PORT_GROUP: Final = "Port_Group"
ADDRESS_SET: Final = "Address_Set"
QOS: Final = "QoS"
ROUTER_POLICY: Final = "Logical_Router_Policy"
HA_GROUP: Final = "HA_Chassis_Group"
HA_CHASSIS: Final = "HA_Chassis"
METER: Final = "Meter"
METER_BAND: Final = "Meter_Band"

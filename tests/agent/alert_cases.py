"""The alerts of deploy/dashboards/rules.yml, each with series on which it has to fire, and series on which none may.

Series are as promtool reads them: a beginning, a change and a number of repeats, a minute apart. `_` is a scrape without a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_NODE: Final = 'job="userspace-cni",instance="192.0.2.1:9476",node="n1"'
_CONTROLLER: Final = 'job="userspace-cni-controller",instance="192.0.2.2:9476"'
_PORT: Final = f'bridge="br0",port="p",namespace="d",pod="app",vm="",network="net",interface="net1",{_NODE}'
OF_NODE: Final = {"node": "n1", "instance": "192.0.2.1:9476"}
OF_JOB: Final = {"job": "userspace-cni-controller"}
_AGENT: Final = {**OF_NODE, "job": "userspace-cni"}
_PORT_LABELS: Final = {
    **_AGENT,
    "bridge": "br0",
    "port": "p",
    "namespace": "d",
    "pod": "app",
    "network": "net",
    "interface": "net1",
}


@dataclass(frozen=True)
class AlertCase:
    """An alert that fires after `minutes`, and its labels beside name and severity; "" where none may fire."""

    alert: str
    series: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    severity: str = "warning"
    minutes: int = 40
    name: str = ""


def _ours(metric: str, labels: str, values: str) -> dict[str, str]:
    return {f"userspace_cni_{metric}{{{labels}}}": values}


def _calls(outcome: str, values: str, stage: str = "total") -> dict[str, str]:
    return _ours("verb_seconds_count", f'verb="ADD",stage="{stage}",outcome="{outcome}",{_NODE}', values)


def _slow() -> dict[str, str]:
    """ADDs that take between 10 and 30 seconds."""
    counts = {"5": "0x60", "10": "0x60", "30": "0+3x60", "+Inf": "0+3x60"}
    labels = f'verb="ADD",stage="total",outcome="ok",{_NODE}'
    return {
        key: value for le, of in counts.items() for key, value in _ours("verb_seconds_bucket", f'le="{le}",{labels}', of).items()
    }


def _served(registered: str, devices: str) -> dict[str, str]:
    """A driver of devices."""
    return _ours("dra_registered", _NODE, registered) | _ours("slice_devices", _NODE, devices)


def _of_controller(metric: str, values: str = "2x60", **more: str) -> dict[str, str]:
    return _ours(f"controller_{metric}", ",".join([_CONTROLLER, *(f'{key}="{value}"' for key, value in more.items())]), values)


FIRING: Final = (
    AlertCase("UserspaceCniAgentDown", {f"up{{{_NODE}}}": "1x9 0x50"}, _AGENT, "critical"),
    AlertCase(
        "UserspaceCniAgentDown",
        {'up{job="userspace-cni/userspace-cni",instance="192.0.2.1:9476",node="n1"}': "0x60"},
        {**_AGENT, "job": "userspace-cni/userspace-cni"},
        "critical",
        name="by a PodMonitor",
    ),
    AlertCase("UserspaceCniSwitchDown", _ours("vswitchd_alive", _NODE, "1x9 0x50"), _AGENT, "critical"),
    AlertCase("UserspaceCniOvsdbAway", _ours("ovsdb_connected", _NODE, "1x9 0x50"), _AGENT, "critical"),
    AlertCase("UserspaceCniOvsdbFlaps", _ours("ovsdb_reconnects_total", _NODE, "0+1x60"), _AGENT),
    AlertCase("UserspaceCniAddsFail", _calls("unavailable", "0+1x60") | _calls("ok", "0+1x60"), OF_NODE, "critical"),
    AlertCase("UserspaceCniInternalError", _calls("bug", "_x30 1x30"), {**OF_NODE, "verb": "ADD"}),
    AlertCase("UserspaceCniInternalError", _calls("bug", "1x30 2x30"), {**OF_NODE, "verb": "ADD"}, name="once more"),
    AlertCase("UserspaceCniAddsSlow", _slow(), OF_NODE),
    AlertCase("UserspaceCniThreadsStuck", _ours("workers_stuck", _NODE, "1x60"), _AGENT, "critical"),
    AlertCase("UserspaceCniThreadsStuck", _ours("workers_dead", _NODE, "1x60"), _AGENT, "critical", name="dead"),
    AlertCase("UserspaceCniSpoolWaits", _ours("spool_entries", _NODE, "3x60"), _AGENT),
    AlertCase("UserspaceCniFlushFails", _ours("flush_failures_total", _NODE, "0x30 1x30"), _AGENT),
    AlertCase("UserspaceCniSocketDead", _ours("socket_dead", _PORT, "1x60"), {**OF_NODE, "bridge": "br0"}),
    AlertCase(
        "UserspaceCniPortDrops",
        _ours("port_tx_dropped_total", _PORT, "0+60000x60") | _ours("port_tx_packets_total", _PORT, "0+90000x60"),
        _PORT_LABELS,
    ),
    AlertCase(
        "UserspaceCniDriftRepeats",
        _ours("reconcile_actions_total", f'action="put-back-port",{_NODE}', "1+1x60"),
        {**OF_NODE, "action": "put-back-port"},
    ),
    AlertCase(
        "UserspaceCniSpecNotHeld",
        _ours("spec_ready", f'kind="gateway",name="g",source="settings",{_NODE}', "1x9 0x50"),
        {**_AGENT, "kind": "gateway", "name": "g", "source": "settings"},
    ),
    AlertCase(
        "UserspaceCniGatewayLacks",
        _ours("gateway_concern", f'gateway="g",what="a router",{_NODE}', "1x60"),
        {**_AGENT, "gateway": "g", "what": "a router"},
    ),
    AlertCase("UserspaceCniRoutesFailed", _ours("route_pods_failed", _NODE, "2x60"), _AGENT),
    AlertCase(
        "UserspaceCniDevicesNotOffered", _ours("device_registrations_total", f'outcome="failed",{_NODE}', "1+1x60"), OF_NODE
    ),
    AlertCase("UserspaceCniClaimsNotServed", _served("0x60", "3x60"), _AGENT, "critical"),
    AlertCase("UserspaceCniSlicesNotWritten", _served("1x60", "3x9 _x50"), _AGENT),
    AlertCase("UserspaceCniSlicesNotWritten", _ours("dra_registered", _NODE, "1x60"), _AGENT, name="without an account"),
    AlertCase("UserspaceCniControllerDown", {f"up{{{_CONTROLLER}}}": "0x60"}, {**OF_JOB, "instance": "192.0.2.2:9476"}),
    AlertCase("UserspaceCniNoLeader", _of_controller("leader", "1x9 0x50"), OF_JOB, "critical"),
    AlertCase(
        "UserspaceCniTwoLeaders",
        _of_controller("leader", "1x60") | _ours("controller_leader", 'job="userspace-cni-controller",instance="other"', "1x60"),
        OF_JOB,
    ),
    AlertCase(
        "UserspaceCniWritesFail",
        _of_controller("writes_total", "1+1x60", resource="routes", outcome="failed"),
        {**OF_JOB, "resource": "routes"},
    ),
    AlertCase("UserspaceCniOvnNobodyWrites", _of_controller("ovn_lock", "1x9 0x50"), OF_JOB, "critical"),
    AlertCase("UserspaceCniOvnNorthdBehind", _of_controller("ovn_lag"), OF_JOB, "critical"),
    AlertCase("UserspaceCniOvnPortsLacking", _of_controller("ovn_ports_lacking"), OF_JOB),
    AlertCase("UserspaceCniOvnAddressesRefused", _of_controller("ovn_notes_refused"), OF_JOB),
    AlertCase("UserspaceCniOvnServicesLacking", _of_controller("ovn_services_lacking"), OF_JOB),
    AlertCase("UserspaceCniOvnPoliciesClosed", _of_controller("ovn_policies_closed"), OF_JOB),
)
_OF_CONTROLLER_CALM: Final = ("ovn_lag", "ovn_ports_lacking", "ovn_notes_refused", "ovn_services_lacking", "ovn_policies_closed")
CALM: Final = (
    AlertCase(
        "",
        {f"up{{{_NODE}}}": "1x60", f"up{{{_CONTROLLER}}}": "1x60"}
        | _ours("vswitchd_alive", _NODE, "1x60")
        | _ours("ovsdb_connected", _NODE, "1x60")
        | _ours("ovsdb_reconnects_total", _NODE, "0x20 1x40")
        | _ours("spool_entries", _NODE, "0x60")
        | _ours("workers_stuck", _NODE, "0x60")
        | _ours("workers_dead", _NODE, "0x60")
        | _ours("route_pods_failed", _NODE, "0x60")
        | _ours("flush_failures_total", _NODE, "0x60")
        | _ours("spec_ready", f'kind="gateway",name="g",source="settings",{_NODE}', "1x60")
        | _of_controller("leader", "1x60")
        | _of_controller("ovn_lock", "1x60")
        | {key: value for name in _OF_CONTROLLER_CALM for key, value in _of_controller(name, "0x60").items()},
        name="all is well",
    ),
    AlertCase(
        "",
        _ours("vswitchd_alive", _NODE, "_x60")
        | _ours("ovsdb_connected", _NODE, "0x1 1x60")
        | _ours("spec_ready", f'kind="gateway",name="g",source="settings",{_NODE}', "0x3 1x60")
        | _calls("not_serving", "0+1x3 3x60"),
        minutes=3,
        name="just started",
    ),
    AlertCase(
        "",
        _ours("flush_failures_total", _NODE, "5x30 0x30")
        | _ours("ovsdb_reconnects_total", _NODE, "40x30 0x30")
        | _ours("reconcile_actions_total", f'action="put-back-port",{_NODE}', "70x30 0x30")
        | _calls("unavailable", "90x30 0x30"),
        name="counters of a restarted agent begin at 0",
    ),
    AlertCase("", _calls("input", "0+3x60") | _calls("ok", "0+1x60"), name="networks with a mistake"),
    AlertCase("", _calls("gone", "0+3x60") | _calls("ok", "0+1x60"), name="containers that end while they are attached"),
    AlertCase("", _calls("unavailable", "0+1x60") | _calls("ok", "0+20x60"), name="few of many fail"),
    AlertCase(
        "",
        _ours("port_tx_dropped_total", _PORT, "0+60000x60")
        | _ours("port_tx_packets_total", _PORT, "0+90000x60")
        | _ours("port_limit_drops_total", f'direction="to_pod",{_PORT}', "0+60000x60"),
        name="a limit does what it is for",
    ),
    AlertCase(
        "",
        _ours("port_tx_dropped_total", _PORT, "0+600x60") | _ours("port_tx_packets_total", _PORT, "0+900x60"),
        name="few frames are lost",
    ),
    AlertCase("", {'up{job="userspace-cni",instance="192.0.2.1:9476"}': "0x3 1x60"}, minutes=4, name="a rollout"),
    AlertCase("", {'up{job="another",instance="192.0.2.9:1"}': "0x60"}, name="a job of others"),
    AlertCase("", _served("1x9 0x5 1x50", "0x60"), name="an agent with dra is replaced, on a node without bridges"),
    AlertCase("", _of_controller("leader", "1x9 0x2 1x50"), name="another controller takes over", minutes=12),
)

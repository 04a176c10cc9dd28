"""The dashboard of one node, for make_dashboards.py."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.dashboard_panels import (
    AGENTS,
    DROPS_TEXT,
    OK,
    STAGES,
    TOTAL,
    ShownDashboard,
    ShownPanel,
    ShownRow,
    calls,
    drops,
    joined,
    number,
    quantile,
    rate,
    routes,
)

_NODE: Final = 'node=~"$node"'
_PORT: Final = "{{namespace}}/{{pod}}{{vm}} {{interface}}"


def _ports_of_node(metric: str, times: str = "") -> str:
    return f"topk (15, sum by (namespace, pod, vm, interface) ({rate(metric, _NODE)}){times} > 0)"


NODE: Final = ShownDashboard(
    "userspace-cni-node",
    "userspace-cni: node",
    "One node: its switch, the calls of its runtime, its ports, and what it is to have.",
    (
        ShownRow(
            "Now",
            (
                number(
                    "Switch alive",
                    f"min (userspace_cni_vswitchd_alive{{{_NODE}}})",
                    "1 while ovs-vswitchd answers. No data while that is unknown.",
                    zero=("dead", "alive"),
                ),
                number(
                    "OVSDB connected",
                    f"min (userspace_cni_ovsdb_connected{{{_NODE}}})",
                    "1 while the agent has a session with OVSDB.",
                    zero=("away", "connected"),
                ),
                number("Ports", f"sum (userspace_cni_ports{{{_NODE}}})", "As the switch says."),
                number(
                    "Applications connected",
                    f"sum (userspace_cni_vhost_connected{{{_NODE}}})",
                    "vhost-user ports whose application is connected, as OVS says.",
                ),
                number(
                    "Dead sockets",
                    f"count (userspace_cni_socket_dead{{{_NODE}}} == 1)",
                    "Sockets that no process has, which the agent could not repair. None is no data.",
                    red_at=1,
                ),
                number(
                    "Specs not held",
                    f"sum (userspace_cni_spec_ready{{{_NODE}}} == bool 0)",
                    "What this node is to have and has not.",
                    red_at=1,
                ),
                number(
                    "DELs in the spool",
                    f"sum (userspace_cni_spool_entries{{{_NODE}}})",
                    "They wait for the agent to read them.",
                ),
                number(
                    "Threads stuck or dead",
                    f"sum (userspace_cni_workers_stuck{{{_NODE}}}) + sum (userspace_cni_workers_dead{{{_NODE}}})",
                    "The kubelet restarts such an agent.",
                    red_at=1,
                ),
            ),
        ),
        ShownRow(
            "Calls of runtimes",
            (
                *calls(_NODE),
                ShownPanel(
                    "Verbs: nine of ten took no longer",
                    "lines",
                    {"{{verb}}": quantile(0.9, "verb, le", joined(_NODE, TOTAL, OK))},
                    "Calls that succeeded.",
                    "s",
                ),
                ShownPanel(
                    "Stages: nine of ten took no longer",
                    "lines",
                    {"{{stage}}": quantile(0.9, "stage, le", joined(_NODE, STAGES))},
                    "Of all verbs. link is a pod's kernel link, pod its directories, sockets and files, record the store.",
                    "s",
                ),
                ShownPanel(
                    "Calls now",
                    "lines",
                    {
                        "run": f"sum (userspace_cni_workers_busy{{{_NODE}}})",
                        "wait for a thread": f"sum (userspace_cni_workers_queued{{{_NODE}}})",
                        "wait for addresses": f"sum (userspace_cni_adds_waiting{{{_NODE}}})",
                        "connections": f"sum (userspace_cni_connections{{{_NODE}}})",
                    },
                    "At the moment of the scrape.",
                ),
            ),
        ),
        ShownRow(
            "Ports and frames",
            (
                ShownPanel(
                    "Ports by bridge, kind and state of the link",
                    "stack",
                    {"{{bridge}} {{kind}} {{link_state}}": f"sum by (bridge, kind, link_state) (userspace_cni_ports{{{_NODE}}})"},
                    "unknown: the switch is dead or silent.",
                ),
                ShownPanel(
                    "From applications",
                    "lines",
                    {_PORT: _ports_of_node("port_rx_bytes_total", " * 8")},
                    "The fifteen ports with most.",
                    "bps",
                ),
                ShownPanel(
                    "To applications",
                    "lines",
                    {_PORT: _ports_of_node("port_tx_bytes_total", " * 8")},
                    "The fifteen ports with most.",
                    "bps",
                ),
                ShownPanel("Drops by why", "lines", drops(_NODE), DROPS_TEXT, "pps"),
                ShownPanel(
                    "Drops towards the application",
                    "lines",
                    {_PORT: _ports_of_node("port_tx_dropped_total")},
                    "The application does not read fast enough, is not connected, or is over its limit.",
                    "pps",
                ),
                ShownPanel(
                    "Drops from the application",
                    "lines",
                    {_PORT: _ports_of_node("port_rx_dropped_total")},
                    "Over the limit, or frames that the switch cannot take.",
                    "pps",
                ),
                ShownPanel(
                    "Frames",
                    "lines",
                    {
                        "from applications": f"sum ({rate('port_rx_packets_total', _NODE)})",
                        "to applications": f"sum ({rate('port_tx_packets_total', _NODE)})",
                    },
                    "Of all attachments' ports.",
                    "pps",
                ),
                ShownPanel(
                    "Limits",
                    "lines",
                    {
                        _PORT + " {{direction}}": "topk (15, sum by (namespace, pod, vm, interface, direction) "
                        f"(userspace_cni_port_limit_bits_per_second{{{_NODE}}}))"
                    },
                    "The rates to which ports are limited.",
                    "bps",
                ),
                ShownPanel(
                    "Over the limit",
                    "lines",
                    {
                        _PORT + " {{direction}}": "topk (15, sum by (namespace, pod, vm, interface, direction) "
                        f"({rate('port_limit_drops_total', _NODE)}) > 0)"
                    },
                    "Frames per second that limits have dropped.",
                    "pps",
                ),
            ),
        ),
        ShownRow(
            "What the node is to have, and drift",
            (
                ShownPanel(
                    "Specs",
                    "lines",
                    {"{{kind}} {{name}} ({{source}})": f"min by (kind, name, source) (userspace_cni_spec_ready{{{_NODE}}})"},
                    "1 while the node has it, 0 while it has not.",
                ),
                ShownPanel(
                    "Repairs by action",
                    "lines",
                    {"{{action}}": f"sum by (action) ({rate('reconcile_actions_total', _NODE)}) > 0"},
                    "What reconcile undid, removed, made again or put back.",
                    "ops",
                ),
                ShownPanel(
                    "What gateways lack",
                    "lines",
                    {"{{gateway}}: {{what}}": f"max by (gateway, what) (userspace_cni_gateway_concern{{{_NODE}}})"},
                    "A sysctl, a router that answers.",
                ),
                routes(_NODE),
                ShownPanel(
                    "Devices",
                    "lines",
                    {
                        "bridges": f"sum (userspace_cni_device_bridges{{{_NODE}}})",
                        "registrations {{outcome}}": f"sum by (outcome) ({rate('device_registrations_total', _NODE)})",
                        "allocations {{outcome}}": f"sum by (outcome) ({rate('device_allocations_total', _NODE)})",
                    },
                    "With the setting devices_per_bridge: bridges that the kubelet watches, and what it asked per second.",
                ),
                ShownPanel(
                    "Failures",
                    "lines",
                    {
                        "new problems of specs: {{kind}}": f"sum by (kind) ({rate('spec_failures_total', _NODE)})",
                        "sessions with OVSDB lost": f"sum ({rate('ovsdb_reconnects_total', _NODE)})",
                        "flushes that the disk refused": f"sum ({rate('flush_failures_total', _NODE)})",
                        "events that nobody was told": f"sum ({rate('events_dropped_total', _NODE)})",
                    },
                    "Per second.",
                    "ops",
                ),
            ),
        ),
        ShownRow(
            "The agent",
            (
                ShownPanel(
                    "Version",
                    "table",
                    {"": f"count by (version, commit, python, node, instance) (userspace_cni_build_info{{{_NODE}}})"},
                    "Of the agent and its Python.",
                ),
                ShownPanel(
                    "Memory",
                    "lines",
                    {"resident": f"sum by (instance) (process_resident_memory_bytes{{{AGENTS},{_NODE}}})"},
                    "Of the agent's process, without the IPAM plugins that it runs.",
                    "bytes",
                ),
                ShownPanel(
                    "Processor",
                    "lines",
                    {"cores": f"sum by (instance) (rate(process_cpu_seconds_total{{{AGENTS},{_NODE}}}[$__rate_interval]))"},
                    "Of the agent's process.",
                ),
            ),
            folded=True,
        ),
    ),
    {"node": "label_values(userspace_cni_build_info, node)"},
)

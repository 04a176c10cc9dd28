"""The dashboard of all nodes, for make_dashboards.py."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.dashboard_panels import (
    ADD,
    AGENTS,
    DROPS_TEXT,
    FAILED,
    OK,
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

_PORT: Final = "{{node}} {{namespace}}/{{pod}}{{vm}} {{interface}}"
_ALERTS: Final = 'ALERTS{alertname=~"UserspaceCni.*",alertstate="firing"'

CLUSTER: Final = ShownDashboard(
    "userspace-cni-cluster",
    "userspace-cni: cluster",
    "All nodes at once: what needs a look, and on which node. A line of a node leads to its dashboard.",
    (
        ShownRow(
            "Now",
            (
                number("Nodes with an agent", "count (userspace_cni_build_info)", "Agents whose metrics Prometheus has."),
                number("Agents away", f"sum (up{{{AGENTS}}} == bool 0)", "Targets that Prometheus cannot scrape.", red_at=1),
                number(
                    "Switches dead or silent",
                    "sum (userspace_cni_vswitchd_alive == bool 0)",
                    "ovs-vswitchd does not answer there: no frame is moved.",
                    red_at=1,
                ),
                number(
                    "Without OVSDB",
                    "sum (userspace_cni_ovsdb_connected == bool 0)",
                    "Agents without a session with OVSDB: no pod can be attached there.",
                    red_at=1,
                ),
                number("Ports", "sum (userspace_cni_ports)", "Ports of all switches, probes and uplinks among them."),
                number(
                    "Dead sockets",
                    "count (userspace_cni_socket_dead == 1)",
                    "Sockets that no process has, which the agents could not repair. None is no data.",
                    red_at=1,
                ),
                number(
                    "Specs not held",
                    "sum (userspace_cni_spec_ready == bool 0)",
                    "Uplinks, gateways and other things that a node is to have and has not.",
                    red_at=1,
                ),
                number(
                    "Controllers that lead",
                    "sum (userspace_cni_controller_leader)",
                    "One, where the controller is deployed. No data where it is not.",
                    zero=("none", "1"),
                ),
            ),
        ),
        ShownRow(
            "What needs a look",
            (
                ShownPanel(
                    "Alerts that fire",
                    "table",
                    {"": f"count by (severity, alertname, node, instance) ({_ALERTS}}})"},
                    "Alerts of rules.yml. Their descriptions name the command to look with.",
                    width=24,
                ),
            ),
        ),
        ShownRow(
            "Calls of runtimes",
            (
                *calls(""),
                ShownPanel(
                    "Nodes with the slowest ADDs",
                    "lines",
                    {"{{node}}": f"topk (10, {quantile(0.9, 'node, le', joined(ADD, TOTAL, OK))})"},
                    "Nine of ten ADDs took no longer than this; the ten slowest nodes at each moment.",
                    "s",
                ),
                ShownPanel(
                    "Nodes where ADDs fail",
                    "lines",
                    {
                        "{{node}} {{outcome}}": "topk (10, sum by (node, outcome) ("
                        f"{rate('verb_seconds_count', joined(ADD, TOTAL, FAILED))}) > 0)"
                    },
                    "The runtime tries an ADD again: one pod that cannot be attached is a steady line.",
                    "ops",
                ),
                ShownPanel(
                    "Calls that wait",
                    "lines",
                    {
                        "for addresses: {{node}}": "topk (10, sum by (node) (userspace_cni_adds_waiting) > 0)",
                        "for a thread: {{node}}": "topk (10, sum by (node) (userspace_cni_workers_queued) > 0)",
                        "DELs in the spool: {{node}}": "topk (10, sum by (node) (userspace_cni_spool_entries) > 0)",
                    },
                    "ADDs that wait for addresses in annotations, calls that wait for a thread, DELs that no agent has read yet.",
                ),
            ),
        ),
        ShownRow(
            "Ports and frames",
            (
                ShownPanel(
                    "Ports by kind and state of the link",
                    "stack",
                    {"{{kind}} {{link_state}}": "sum by (kind, link_state) (userspace_cni_ports)"},
                    "unknown: the switch is dead or silent there.",
                ),
                ShownPanel(
                    "Traffic",
                    "lines",
                    {
                        "from applications": f"sum ({rate('port_rx_bytes_total')}) * 8",
                        "to applications": f"sum ({rate('port_tx_bytes_total')}) * 8",
                    },
                    "Bits per second of all attachments' ports.",
                    "bps",
                ),
                ShownPanel("Drops by why", "lines", drops(""), DROPS_TEXT, "pps"),
                ShownPanel(
                    "Ports that drop most",
                    "lines",
                    {
                        _PORT: "topk (10, sum by (node, namespace, pod, vm, interface)"
                        f" ({rate('port_tx_dropped_total')} + {rate('port_rx_dropped_total')}) > 0)"
                    },
                    "Frames per second that the switch or the application did not take.",
                    "pps",
                    12,
                ),
                ShownPanel(
                    "Ports that their limit holds back",
                    "lines",
                    {
                        _PORT + " {{direction}}": "topk (10, sum by "
                        f"(node, namespace, pod, vm, interface, direction) ({rate('port_limit_drops_total')}) > 0)"
                    },
                    "Frames per second over the limit.",
                    "pps",
                    12,
                ),
            ),
        ),
        ShownRow(
            "What nodes are to have, and drift",
            (
                ShownPanel(
                    "Specs not held",
                    "lines",
                    {"{{kind}} {{name}}": "topk (20, sum by (kind, name) (userspace_cni_spec_ready == bool 0) > 0)"},
                    "On how many nodes: uplinks, gateways, translation, mirrors, the runtimes' network.",
                ),
                ShownPanel(
                    "Repairs by action",
                    "lines",
                    {"{{action}}": f"sum by (action) ({rate('reconcile_actions_total')}) > 0"},
                    "What reconcile undid, removed, made again or put back. put-back: another program had changed it.",
                    "ops",
                ),
                ShownPanel(
                    "Nodes with most repairs",
                    "lines",
                    {"{{node}}": f"topk (10, sum by (node) ({rate('reconcile_actions_total')}) > 0)"},
                    "A node on which another program undoes what the agent makes is a steady line.",
                    "ops",
                ),
                ShownPanel(
                    "What gateways lack",
                    "lines",
                    {"{{gateway}}: {{what}}": "sum by (gateway, what) (userspace_cni_gateway_concern)"},
                    "On how many nodes: a sysctl, a router that answers.",
                ),
                routes(""),
                ShownPanel(
                    "Sessions with OVSDB that were lost",
                    "lines",
                    {"{{node}}": f"topk (10, sum by (node) ({rate('ovsdb_reconnects_total')}) > 0)"},
                    "Each is a new session of the agent.",
                    "ops",
                ),
            ),
        ),
        ShownRow(
            "Controller",
            (
                ShownPanel(
                    "Leader",
                    "lines",
                    {
                        "leads": "sum (userspace_cni_controller_leader)",
                        "has OVN's lock": "sum (userspace_cni_controller_ovn_lock)",
                    },
                    "One of each, except for seconds after a crash.",
                ),
                ShownPanel(
                    "Writes",
                    "lines",
                    {"{{resource}} {{outcome}}": f"sum by (resource, outcome) ({rate('controller_writes_total')})"},
                    "conflict: another writer was first, and it is done again.",
                    "ops",
                ),
                ShownPanel(
                    "Objects that it knows",
                    "lines",
                    {
                        what: f"max (userspace_cni_controller_{what})"
                        for what in ("nodes", "nodestates", "provider_networks", "subnets", "vlans", "ips")
                    },
                    "Of the controller that knows most.",
                ),
            ),
            folded=True,
        ),
        ShownRow(
            "OVN",
            (
                ShownPanel(
                    "Logical ports",
                    "lines",
                    {
                        "pods": "max (userspace_cni_controller_ovn_pods)",
                        "logical ports": "max (userspace_cni_controller_ovn_ports)",
                        "cannot be made": "max (userspace_cni_controller_ovn_ports_lacking)",
                        "keep what they could not get now": "max (userspace_cni_controller_ovn_ports_doubtful)",
                        "limits refused": "max (userspace_cni_controller_ovn_limits_refused)",
                        "addresses wait for their pod": "max (userspace_cni_controller_ovn_notes_waiting)",
                        "addresses that the API refused": "max (userspace_cni_controller_ovn_notes_refused)",
                    },
                    "Where the controller keeps logical ports of OVN; no data elsewhere.",
                ),
                ShownPanel(
                    "Services and policies",
                    "lines",
                    {
                        "Services": "max (userspace_cni_controller_ovn_services)",
                        "load balancers": "max (userspace_cni_controller_ovn_load_balancers)",
                        "Services not wholly served": "max (userspace_cni_controller_ovn_services_lacking)",
                        "policies": "max (userspace_cni_controller_ovn_policies)",
                        "policies that let less through than they say": "max (userspace_cni_controller_ovn_policies_closed)",
                        "port groups and address sets": "max (userspace_cni_controller_ovn_policy_rows)",
                    },
                    "What the controller writes into the northbound database.",
                ),
                ShownPanel(
                    "Changes that ovn-northd has not taken over",
                    "lines",
                    {"changes": "max (userspace_cni_controller_ovn_lag)"},
                    "Of those that were numbered. It goes back to 0 within seconds while ovn-northd works.",
                ),
                ShownPanel(
                    "Seconds of the last comparison of all",
                    "lines",
                    {
                        "logical ports": "max (userspace_cni_controller_ovn_full_seconds)",
                        "Services": "max (userspace_cni_controller_ovn_services_full_seconds)",
                        "policies": "max (userspace_cni_controller_ovn_policies_full_seconds)",
                    },
                    "How long the controller takes to compare all with the database.",
                    "s",
                ),
            ),
            folded=True,
        ),
    ),
)

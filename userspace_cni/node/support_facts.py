"""What `support` collects of switch and kernel, as JSON values and texts. It reads, each within the caller's deadline.

Maps of rows are given with the values of known keys alone: other programs may keep what is secret in theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.errors import StepFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.root import HostRoot
    from userspace_cni.host.netlink.node_kernel import Kernel
    from userspace_cni.node.local_switch import LocalSwitch
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

DAEMON_COMMANDS: Final = (
    "version",
    "memory/show",
    "coverage/show",
    "upcall/show",
    "dpif/show",
    "dpif-netdev/pmd-stats-show",
    "dpif-netdev/pmd-rxq-show",
    "dpif-netdev/pmd-perf-show",
    "bond/list",
    "vlog/list",
)
"""Commands of ovs-appctl(8) that only read."""
LEFT_OUT: Final = "(left out)"
_KNOWN: Final[Mapping[str, re.Pattern[str]]] = {
    "Open_vSwitch": re.compile(
        r"(?:dpdk|pmd|vhost|tx|hw|n|max|min|flow|emc|smc|userspace|per|offload|vlan|bundle|stats)-[\w-]*"
        r"|system-id|hostname|rundir|ovn-bridge|ovn-bridge-mappings|ovn-encap-type|ovn-encap-ip|ovn-monitor-all"
    ),
    "Bridge": re.compile(
        r"hwaddr|mac-[\w-]*|mcast-[\w-]*|stp-[\w-]*|rstp-[\w-]*|disable-in-band|flow-limit|forward-bpdu|datapath-id"
    ),
    "Interface": re.compile(
        r"vhost-server-path|peer|dpdk-devargs|n_rxq|n_rxq_desc|n_txq_desc|xdp-mode|tx-retries-max|pmd-rxq-affinity|rx-steering"
        r"|iface-id|iface-id-ver|iface-status|ovn-installed|attached-mac|dst_port|key|remote_ip|local_ip|mode|status|driver_name"
        r"|driver_version|firmware_version|features|num_of_vrings|numa|numa_id|vring_\d+_size|socket|userspace-tso|port_no|if_type|link_speed|max_\w*"
    ),
    "QoS": re.compile(r"max-rate|min-rate|burst|cir|cbs|eir|ebs|rtnetlink|type"),
    "Queue": re.compile(r"max-rate|min-rate|burst|priority|dscp"),
    "Port": re.compile(r"bond-[\w-]*|lacp-[\w-]*|rstp-[\w-]*"),
}
"""Of each table, the keys of its maps (ovs-vswitchd.conf.db(5)); marks of ours beside them."""
_MARK: Final = re.compile(
    r"owner|owner-kind|schema|store|run|spec|container-id|network|ifname|boot-id|netns|netns-inode|pod-namespace|pod-name|pod-uid"
    r"|vm-name|ifindex|former-mtu|former-offloads|moves-addresses|purpose|pid"
)
_ROWS_MAX: Final = 5000
_TABLES_NFT: Final = re.compile(r"^table (\w+) (userspace[\w-]*)$", re.MULTILINE)


def watch_daemon(switch: LocalSwitch) -> dict[str, Any]:
    """Whether ovs-vswitchd lives, and its process."""
    seen = switch.ports.watch_liveness()
    return {"state": seen.state, "reason": seen.reason, "pid": seen.pid}


def known_daemon(switch: LocalSwitch) -> int:
    """The process of ovs-vswitchd that was seen last; 0 for none."""
    seen = switch.ports.daemon.seen
    return (seen.pid if seen else None) or 0


def ask_daemon(switch: LocalSwitch, command: str, deadline: Deadline) -> str:
    """The answer of ovs-vswitchd to a command of ovs-appctl(8). Raises Unavailable, SwitchRefused."""
    return switch.ports.daemon.run_command(command, deadline=deadline)


def read_tables(switch: LocalSwitch, deadline: Deadline) -> dict[str, Any]:
    """The rows of the tables that this program uses, by their columns, of each table the first thousands. Raises Unavailable."""
    switch.ports.connect(deadline)
    return switch.ports.look(_rows_of, {}, "reading the tables of the switch", deadline)


def read_kernel(switch_netns: str, root: HostRoot) -> dict[str, Any]:
    """Links, addresses, routes and policy rules where the switch opens its ports. Raises UserspaceError."""
    from userspace_cni.host.netlink.node_kernel import NODE_PROTOCOL, at_node

    def read(kernel: Kernel) -> dict[str, Any]:
        parts: dict[str, Callable[[], list[Any]]] = {
            "links": lambda: list(kernel.links().values()),
            "addresses": kernel.addresses,
            "routes": kernel.routes,
            "rules": kernel.rules,
        }
        found = {name: [_plain(asdict(each)) for each in look()[:_ROWS_MAX]] for name, look in parts.items()}
        return {"namespace": switch_netns or "the node's own", "our protocol": NODE_PROTOCOL, **found}

    return at_node(switch_netns, root, "reading links, addresses and routes", read)


def read_nft(switch_netns: str, root: HostRoot, deadline: Deadline) -> str:
    """Our tables of nftables as nft(8) lists them; "" for none. Raises StepFailed, Unavailable."""
    from userspace_cni.host.node_net.programs import run

    def ask(*words: str) -> str:
        done = run(("nft", *words), "", switch_netns, root, deadline)
        if done.returncode:
            raise StepFailed(f"nft {' '.join(words)}: {done.stderr.strip()[:400]}")
        return done.stdout

    return "".join(ask("list", "table", family, name) for family, name in _TABLES_NFT.findall(ask("list", "tables")))


def _rows_of(session: SwitchSession) -> dict[str, Any]:
    from userspace_cni.ovsdb.column_values import columns_of

    return {
        table: [
            {"_uuid": str(row.uuid), **{column: _column(table, value) for column, value in columns_of(row).items()}}
            for row in list(session.rows(table))[:_ROWS_MAX]
        ]
        for table in ("Open_vSwitch", "Bridge", "Port", "Interface", "Mirror", "QoS", "Queue")
    }


def _column(table: str, value: Any) -> Any:
    if isinstance(value, dict):
        known = _KNOWN.get(table)
        return {
            str(key): _plain(each)
            if isinstance(key, int) or _MARK.fullmatch(key) or (known and known.fullmatch(key))
            else LEFT_OUT
            for key, each in value.items()
        }
    return _plain(value)


def _plain(value: Any) -> Any:
    """JSON values: addresses, networks and UUIDs as texts."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)

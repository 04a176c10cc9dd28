"""What the lab's node shows of OVN when a pod's address does not answer: one failure has to tell which part is the cause."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.lab.cluster.cluster import NAMESPACE, Cluster
from tests.lab.cluster.machine import MachineError
from tests.lab.cluster.node import ADDRESS

_SHOWN = 4000
_SOUTHBOUND = ("ovn-sbctl", f"--db=tcp:{ADDRESS}:6642", "--timeout=10")


@contextmanager
def told(cluster: Cluster, node_port: str, address: str) -> Iterator[None]:
    """An AssertionError of the block tells what switch, OVN and kernel show of the way from the node's port to the address."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError("\n\n".join([str(error), *describe_way(cluster, node_port, address)])) from error


def describe_way(cluster: Cluster, node_port: str, address: str) -> list[str]:
    """One paragraph for each look; one that fails says why."""

    def on_node(*argv: str) -> Callable[[], str]:
        return lambda: _printed(cluster.node.machine.attempt(*argv))

    def log(*more: str) -> Callable[[], str]:
        return lambda: cluster.kubectl("-n", NAMESPACE, "logs", "daemonset/ovn-controller", "--container=ovn-controller", *more)

    def by_agent(command: str) -> Callable[[], str]:
        """Whatever its exit code is: findings end with 1."""

        def run() -> str:
            at = cluster.agent_pod()["metadata"]
            line = f"userspace-cni {command} 2>&1 || true"
            return cluster.exec(at["name"], "sh", "-c", line, container="agent", namespace=at["namespace"])

        return run

    switch = cluster.switch
    looks: dict[str, Callable[[], str]] = {
        "addresses": on_node("ip", "-d", "address", "show", "dev", node_port),
        "route": on_node("ip", "route", "get", address),
        "neighbours": on_node("ip", "-s", "neighbour"),
        "interfaces": lambda: switch.vsctl(
            "--no-wait", "--columns=name,type,ofport,error,admin_state,link_state,mac_in_use,external_ids", "list", "Interface"
        ),
        "port bindings": on_node(*_SOUTHBOUND, "--columns=logical_port,chassis,up,mac,options,type", "list", "Port_Binding"),
        "chassis": on_node(*_SOUTHBOUND, "--columns=name,hostname,nb_cfg,other_config", "list", "Chassis"),
        "flows by table": lambda: _count_tables(switch.appctl("bridge/dump-flows", "br-int")),
        "datapath's flows": lambda: switch.appctl("dpctl/dump-flows", "-m"),
        "PMD threads": lambda: switch.appctl("dpif-netdev/pmd-stats-show"),
        "ARP in OVN's eyes": lambda: switch.appctl("ofproto/trace", "br-int", _request(cluster, node_port, address, "arp")),
        "a ping in OVN's eyes": lambda: switch.appctl("ofproto/trace", "br-int", _request(cluster, node_port, address, "icmp")),
        "log of ovn-controller": log("--tail=60"),
        "log of the one before it": log("--tail=60", "--previous"),
        "attachments": by_agent("list --output wide"),
        "ovn check": by_agent("ovn check"),
        "doctor": by_agent("doctor"),
    }
    return [f"-- {what}:\n{_look(look)}" for what, look in looks.items()]


def _look(look: Callable[[], str]) -> str:
    try:
        return look()[-_SHOWN:]
    except (MachineError, RuntimeError, OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        return f"cannot be looked at: {str(error)[-_SHOWN:]}"


def _printed(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def _count_tables(flows: str) -> str:
    counts: dict[int, int] = {}
    for line in flows.splitlines():
        fields = dict(part.partition("=")[::2] for part in line.replace(",", " ").split())
        table = int(fields.get("table_id") or fields.get("table") or 0)
        counts[table] = counts.get(table, 0) + 1
    return " ".join(f"{table}:{counts[table]}" for table in sorted(counts))


def _request(cluster: Cluster, node_port: str, address: str, kind: str) -> str:
    """The first frame of a ping from the node to the address, as a flow."""
    row = cluster.switch.interface(node_port)
    own = cluster.node.machine.run("ip", "-4", "-o", "address", "show", "dev", node_port).split()[3].partition("/")[0]
    begin = f"in_port={row['ofport']},dl_src={row['mac_in_use']}"
    if kind == "arp":
        return f"{begin},dl_dst=ff:ff:ff:ff:ff:ff,arp,arp_op=1,arp_spa={own},arp_tpa={address},arp_sha={row['mac_in_use']}"
    bound = cluster.node.machine.run(*_SOUTHBOUND, "--bare", "--columns=mac", "list", "Port_Binding").splitlines()
    mac = next(line.split()[0] for line in bound if address in line.split()[1:])
    return f"{begin},dl_dst={mac},icmp,nw_src={own},nw_dst={address},nw_ttl=64,icmp_type=8,icmp_code=0"

"""`userspace-cni ovn` and its commands."""

from __future__ import annotations

import click

from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.deferred import defer


@click.group("ovn", cls=ProgramGroup)
def ovn_command() -> None:
    """Work with OVN's logical network of the cluster, and with this node's part in it."""


@defer(ovn_command, "init-cluster", "Make what the cluster has once: router and join switch.")
def _init_cluster() -> click.Command:
    from userspace_cni.cli.ovn.init_commands import cluster_command

    return cluster_command


@defer(ovn_command, "init-node", "Make a node's switch, and this node a chassis.")
def _init_node() -> click.Command:
    from userspace_cni.cli.ovn.init_commands import node_command

    return node_command


@defer(ovn_command, "init-gateway", "Make a gateway to the network outside.")
def _init_gateway() -> click.Command:
    from userspace_cni.cli.ovn.gateway_commands import gateway_command

    return gateway_command


@defer(ovn_command, "remove-gateway", "Remove a gateway.")
def _remove_gateway() -> click.Command:
    from userspace_cni.cli.ovn.gateway_commands import remove_command

    return remove_command


@defer(ovn_command, "remove-node", "Remove a node.")
def _remove_node() -> click.Command:
    from userspace_cni.cli.ovn.removal_commands import node_removal

    return node_removal


@defer(ovn_command, "remove-cluster", "Remove what the cluster has once.")
def _remove_cluster() -> click.Command:
    from userspace_cni.cli.ovn.removal_commands import cluster_removal

    return cluster_removal


@defer(ovn_command, "status", "Show databases, nodes, chassis and ports.")
def _status() -> click.Command:
    from userspace_cni.cli.ovn.ovn_status import status_command

    return status_command


@defer(ovn_command, "check", "Report what is not as it should be.")
def _check() -> click.Command:
    from userspace_cni.cli.ovn.ovn_status import check_command

    return check_command


@defer(ovn_command, "trace", "Follow a packet from one port to another.")
def _trace() -> click.Command:
    from userspace_cni.cli.ovn.trace_command import trace_command

    return trace_command


@defer(ovn_command, "watch", "Keep the logical ports of pods.")
def _watch() -> click.Command:
    from userspace_cni.cli.ovn.watch_ports import watch_command

    return watch_command


@defer(ovn_command, "gateway-helper", "Share a bridge with OVN's gateway router.")
def _gateway_helper() -> click.Command:
    from userspace_cni.cli.ovn.gateway_command import helper_command

    return helper_command


@defer(ovn_command, "nic-to-bridge", "Make a bridge with a NIC as its uplink.")
def _nic_to_bridge() -> click.Command:
    from userspace_cni.cli.network.bridging import bridging_command

    return bridging_command

"""`setup`: prepares a node for the switch."""

from __future__ import annotations

import click

from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.deferred import defer


@click.group("setup", cls=ProgramGroup)
def setup_command() -> None:
    """Prepare a node for Open vSwitch with DPDK."""


@defer(setup_command, "dpdk", "Print, or run, what a node needs to run OVS-DPDK.")
def _dpdk() -> click.Command:
    from userspace_cni.cli.node.setup_dpdk import setup_dpdk_command

    return setup_dpdk_command

"""The commands of `userspace-cni`. Exit codes: 0 good, 1 finding or failure, 2 usage, 3 cannot reach what was asked."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

import click

from userspace_cni.base.signals import Signals
from userspace_cni.cli.command_line import ProgramCommand, ProgramGroup
from userspace_cni.cli.deferred import defer
from userspace_cni.cli.exit_codes import FOUND, INTERRUPTED
from userspace_cni.cli.view import plain

_STDERR: Final = 2
_PURPOSES: Final = {
    "See what is there": ("list", "show", "top", "map", "status", "network", "gateway"),
    "Find out what is wrong": ("why", "doctor", "check", "gc", "lint", "support"),
    "Send and capture frames": ("probe", "ping", "load", "capture", "tap", "enter"),
    "Connect nodes and clusters": ("uplink", "nic-to-bridge", "ovn", "routes", "kubevirt"),
    "Install and run": ("setup", "install", "uninstall", "agent", "controller"),
    "Write and read settings": ("settings", "schema"),
    "About this program": ("help", "completion"),
}
"""What commands are for: the order in which they are listed. What stands nowhere here is listed at the end."""


@click.group(cls=ProgramGroup, purposes=_PURPOSES, invoke_without_command=True)
@click.option("--version", "show_version", is_flag=True, help="Show which build this is, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --version: as a JSON object.")
@click.pass_context
def userspace_cni(ctx: click.Context, show_version: bool, as_json: bool) -> None:
    """CNI plugin of type 'userspace': vhost-user interfaces on OVS-DPDK."""
    if show_version:
        from userspace_cni.cli.shown_build import show_build

        show_build(as_json=as_json)
        ctx.exit()
    if as_json:
        raise click.UsageError("here --json belongs to --version; write it behind the command, as `userspace-cni list --json`")
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@defer(userspace_cni, "list", help_text="List the attachments of this node, all or those named.")
def _list() -> click.Command:
    from userspace_cni.cli.node.attachments import list_command

    return list_command


@defer(userspace_cni, "show", "Show everything of an attachment.")
def _show() -> click.Command:
    from userspace_cni.cli.node.attachments import show_command

    return show_command


@defer(userspace_cni, "top", "Show live what attachments carry.")
def _top() -> click.Command:
    from userspace_cni.cli.top.top_command import top_command

    return top_command


@defer(userspace_cni, "check", "Compare attachments with what ADD made.")
def _check() -> click.Command:
    from userspace_cni.cli.node.check import check_command

    return check_command


@defer(userspace_cni, "why", "Say why a pod's interface does not work, and what to do.")
def _why() -> click.Command:
    from userspace_cni.cli.node.why import why_command

    return why_command


@defer(userspace_cni, "gc", "Finish or remove what dead calls and lost sandboxes left.")
def _gc() -> click.Command:
    from userspace_cni.cli.node.gc import gc_command

    return gc_command


@defer(userspace_cni, "status", "Report the state of this node's agent, switch and records.")
def _status() -> click.Command:
    from userspace_cni.cli.node.status import status_command

    return status_command


@defer(userspace_cni, "doctor", "Report what on this node disturbs the switch, and what mends it.")
def _doctor() -> click.Command:
    from userspace_cni.cli.node.node_doctor import node_doctor_command

    return node_doctor_command


@defer(userspace_cni, "map", "Draw this node's network, as SVG or as a page.")
def _map() -> click.Command:
    from userspace_cni.cli.map.map_command import map_command

    return map_command


@defer(userspace_cni, "support", "Collect what a maintainer needs of this node into one archive.")
def _support() -> click.Command:
    from userspace_cni.cli.support.support_command import support_command

    return support_command


@defer(userspace_cni, "lint", "Report what ADD would refuse in files with networks.")
def _lint() -> click.Command:
    from userspace_cni.cli.cluster.networks_lint import lint_command

    return lint_command


@defer(userspace_cni, "schema", "Print what networks and settings can have, as JSON Schema.")
def _schema() -> click.Command:
    from userspace_cni.cli.cluster.schema import schema_command

    return schema_command


@defer(userspace_cni, "agent", "Serve the node until SIGTERM.")
def _agent() -> click.Command:
    from userspace_cni.cli.node.agent import agent_command

    return agent_command


@defer(userspace_cni, "install", "Put the plugin where the container runtime looks for it.")
def _install() -> click.Command:
    from userspace_cni.cli.node.installing import install_command

    return install_command


@defer(userspace_cni, "uninstall", "Remove the plugin and everything of it from this node.")
def _uninstall() -> click.Command:
    from userspace_cni.cli.node.uninstall import uninstall_command

    return uninstall_command


@defer(userspace_cni, "setup", "Prepare a node for Open vSwitch with DPDK.")
def _setup() -> click.Command:
    from userspace_cni.cli.node.setup_group import setup_command

    return setup_command


@defer(userspace_cni, "network", "Show what the node itself is to have, and what it has.")
def _network() -> click.Command:
    from userspace_cni.cli.network.network_status import network_command

    return network_command


@defer(userspace_cni, "uplink", "Apply, undo and show the node's uplinks.")
def _uplink() -> click.Command:
    from userspace_cni.cli.network.uplink_commands import uplink_command

    return uplink_command


@defer(userspace_cni, "gateway", "Show the node's gateways.")
def _gateway() -> click.Command:
    from userspace_cni.cli.network.network_status import gateway_command

    return gateway_command


@defer(userspace_cni, "nic-to-bridge", "Make a bridge with a NIC as its uplink.")
def _nic_to_bridge() -> click.Command:
    from userspace_cni.cli.network.bridging import bridging_command

    return bridging_command


@defer(userspace_cni, "ovn", "Work with OVN's logical network of the cluster.")
def _ovn() -> click.Command:
    from userspace_cni.cli.ovn.ovn_group import ovn_command

    return ovn_command


@defer(userspace_cni, "routes", "Work with the routes that are kept in running pods.")
def _routes() -> click.Command:
    from userspace_cni.cli.routes.routes_group import routes_command

    return routes_command


@defer(userspace_cni, "enter", "Run a program in a pod's network namespace.")
def _enter() -> click.Command:
    from userspace_cni.cli.routes.enter_namespace import enter_command

    return enter_command


@defer(userspace_cni, "probe", "Test whether bridges move frames.")
def _probe() -> click.Command:
    from userspace_cni.cli.measure.probe import probe_command

    return probe_command


@defer(userspace_cni, "ping", "Measure round trips between two unused ports.")
def _ping() -> click.Command:
    from userspace_cni.cli.measure.ping import ping_command

    return ping_command


@defer(userspace_cni, "load", "Measure the rate between two unused ports.")
def _load() -> click.Command:
    from userspace_cni.cli.measure.load import load_command

    return load_command


@defer(userspace_cni, "capture", "Show the frames of a port.")
def _capture() -> click.Command:
    from userspace_cni.cli.measure.capture_command import capture_command

    return capture_command


@defer(userspace_cni, "tap", "Make a kernel link of a vhost-user socket, until SIGTERM.")
def _tap() -> click.Command:
    from userspace_cni.cli.measure.tap_command import tap_command

    return tap_command


@defer(userspace_cni, "kubevirt", "Manifests for KubeVirt, and what in them or on this node would fail.")
def _kubevirt() -> click.Command:
    from userspace_cni.cli.kubevirt.kubevirt_group import kubevirt_command

    return kubevirt_command


@defer(userspace_cni, "controller", "Sum up for the cluster what nodes report, until SIGTERM.")
def _controller() -> click.Command:
    from userspace_cni.cli.cluster.controller import controller_command

    return controller_command


@defer(userspace_cni, "settings", "Show the settings in force, and check files with them.")
def _settings() -> click.Command:
    from userspace_cni.cli.node.settings_commands import settings_command

    return settings_command


@defer(userspace_cni, "completion", "Print the script by which a shell completes commands and names.")
def _completion() -> click.Command:
    from userspace_cni.cli.completion import completion_command

    return completion_command


def run() -> int:
    """Run the command line of this process; the exit code. Ctrl-C ends it quietly with 130, a closed or full stdout with 1."""
    return run_program(userspace_cni)


def run_program(program: ProgramCommand) -> int:
    """As `run`, of a program with a name of its own."""
    _require_stdout()
    try:
        with Signals(signal.default_int_handler, (signal.SIGINT,)):  # outside this block it ends the process without a message
            code = program.main(standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        what = error.strerror or str(error)
        click.echo(f"Error: {plain(what if error.filename else f'writing to stdout: {what}')}", err=True)
        sys.stdout = None  # the interpreter would flush it once more, and complain
        return FOUND
    return int(code)


def _require_stdout() -> None:
    """Occupy the numbers of a closed stdin, stdout or stderr: no socket of ours may get one, and printing must fail."""
    while (fd := os.open(os.devnull, os.O_RDONLY)) <= _STDERR:
        pass
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)

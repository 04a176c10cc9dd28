"""The commands of `userspace-cni`. Exit codes: 0 good, 1 finding or failure, 2 usage, 3 cannot reach what was asked."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

import click

from userspace_cni.base.signals import Signals
from userspace_cni.cli.cluster.controller import controller_command
from userspace_cni.cli.cluster.lint import lint_command
from userspace_cni.cli.kubevirt.group import kubevirt_command
from userspace_cni.cli.measure.capture import capture_command
from userspace_cni.cli.measure.load import load_command
from userspace_cni.cli.measure.ping import ping_command
from userspace_cni.cli.measure.probe import probe_command
from userspace_cni.cli.measure.tap import tap_command
from userspace_cni.cli.network.bridging import bridging_command
from userspace_cni.cli.network.uplinks import uplink_command
from userspace_cni.cli.network.wished import gateway_command, network_command
from userspace_cni.cli.node.agent import agent_command
from userspace_cni.cli.node.attachments import list_command, show_command
from userspace_cni.cli.node.check import check_command
from userspace_cni.cli.node.gc import gc_command
from userspace_cni.cli.node.install import NAME, NAMES, InstallError, install_launcher, install_shim
from userspace_cni.cli.node.installed import DirectoryName
from userspace_cni.cli.node.seccomp import NAME as PROFILE_NAME
from userspace_cni.cli.node.seccomp import install_profile
from userspace_cni.cli.node.status import status_command
from userspace_cni.cli.node.uninstall import uninstall_command
from userspace_cni.cli.routes.entered import enter_command
from userspace_cni.cli.routes.group import routes_command
from userspace_cni.cli.site import FOUND, INTERRUPTED
from userspace_cni.cli.view import plain, progress

_STDERR: Final = 2


@click.group()
@click.version_option(package_name="userspace-cni")
def userspace_cni() -> None:
    """CNI plugin of type 'userspace': vhost-user interfaces on OVS-DPDK."""


@userspace_cni.command()
@click.option("--standalone", is_flag=True, help="Install a launcher of the plugin as a process per call, which needs no agent.")
@click.option("--mirrors", is_flag=True, help="Install it as ovs-mirror-producer and ovs-mirror-consumer, too.")
@click.option(
    "--bin-dir",
    required=True,
    metavar="DIR",
    type=DirectoryName(file_okay=False),
    help="The runtime's directory of CNI plugins, as /opt/cni/bin; made when missing.",
)
@click.option(
    "--seccomp-dir",
    metavar="DIR",
    type=DirectoryName(file_okay=False),
    help="The kubelet's directory of seccomp profiles, as /var/lib/kubelet/seccomp: put the profile for DPDK there, too.",
)
def install(standalone: bool, mirrors: bool, bin_dir: str, seccomp_dir: str | None) -> None:
    """Put the plugin where the container runtime looks for it: DIR/userspace.

    It is a static binary that hands each call to the agent. It carries the settings by which it finds the agent's socket, and the
    directory for DELs while the agent is away: socket, run_dir, state_dir and spool_max. Run this again when they change.

    With --standalone it runs the Python interpreter that runs this command, isolated from the runtime's own Python settings. It
    carries no settings: each call reads those of its own environment and of the settings file. Where an agent serves the same
    directories, the call is handed to it.

    With --mirrors networks may chain the types ovs-mirror-producer and ovs-mirror-consumer, which ovs-cni has, too; its own
    files are not replaced.

    With --seccomp-dir a pod may name the profile: localhostProfile: userspace-cni/dpdk.json. With it DPDK runs under the Pod
    Security level restricted. Where it cannot be written, the plugin is installed all the same, and the exit code is 1.

    The file is replaced in one step, so that a runtime that starts it meanwhile gets the old one or the new one.
    """
    try:
        with progress("installing the plugin, and trying it"):
            names = NAMES if mirrors else (NAME,)
            path, settings = (install_launcher(bin_dir, names), None) if standalone else install_shim(bin_dir, names)
    except InstallError as error:
        raise click.ClickException(str(error)) from error
    carried = "it carries no settings, each call reads its environment and the settings file"
    if settings is not None:
        carried = (
            f"the agent's socket is {settings.agent_socket}, "
            f"its records are in {settings.state_dir}, DELs while it is away go to {settings.state_dir}/spool, "
            f"at most {settings.spool_max}"
        )
    click.echo(f"installed {path}: {carried}")
    if seccomp_dir is None:
        return
    try:  # after the plugin, which the node needs without the profile, too
        profile = install_profile(seccomp_dir)
    except InstallError as error:
        raise click.ClickException(f"the plugin is installed, the seccomp profile is not: {error}") from error
    click.echo(f"installed {profile}: pods name it as localhostProfile {PROFILE_NAME}")


for command in (
    list_command,
    show_command,
    check_command,
    gc_command,
    status_command,
    lint_command,
    agent_command,
    uninstall_command,
    network_command,
    uplink_command,
    gateway_command,
    bridging_command,
    routes_command,
    enter_command,
    probe_command,
    ping_command,
    load_command,
    capture_command,
    tap_command,
    kubevirt_command,
    controller_command,
):
    userspace_cni.add_command(command)


def run() -> int:
    """Run the command line of this process; the exit code. Ctrl-C ends it quietly with 130, a closed or full stdout with 1."""
    _require_stdout()
    try:
        with Signals(signal.default_int_handler, (signal.SIGINT,)):  # outside this block it ends the process without a message
            code = userspace_cni.main(standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OSError as error:
        click.echo(f"Error: {plain(str(error))}", err=True)
        sys.stdout = None  # the interpreter would flush it once more, and complain
        return FOUND
    return code if isinstance(code, int) else 0


def _require_stdout() -> None:
    """Occupy the numbers of a closed stdin, stdout or stderr: no socket of ours may get one, and printing must fail."""
    while (fd := os.open(os.devnull, os.O_RDONLY)) <= _STDERR:
        pass
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)

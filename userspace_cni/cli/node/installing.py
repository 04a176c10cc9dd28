"""`install`: puts the plugin, and the seccomp profile if it is asked for, where runtime and kubelet look for them."""

from __future__ import annotations

from typing import Final

import click

from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import bind
from userspace_cni.cli.command_line import ProgramCommand
from userspace_cni.cli.node.install import NAME, InstallError, install_launcher, install_shim
from userspace_cni.cli.node.installed import DirectoryName
from userspace_cni.cli.node.seccomp import NAME as PROFILE_NAME
from userspace_cni.cli.node.seccomp import install_profile
from userspace_cni.cli.site import open_site
from userspace_cni.cli.view import progress
from userspace_cni.cni.mirror_chain import TYPES

NONE: Final = "none"
"""The value of --network that names no file: these end with .conflist."""


@click.command("install", cls=ProgramCommand, examples=("userspace-cni install --bin-dir /opt/cni/bin",))
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
@click.option(
    "--network",
    metavar="FILE",
    type=click.Path(),
    help="A network (*.conflist) for the runtimes of this node, which the agent puts in place when it serves; or none.",
)
@click.pass_context
def install_command(
    ctx: click.Context, standalone: bool, mirrors: bool, bin_dir: str, seccomp_dir: str | None, network: str | None
) -> None:
    """Put the plugin where the container runtime looks for it: DIR/userspace.

    It is a static binary that hands each call to the agent. It carries the settings by which it finds the agent's socket, and the
    directory for DELs while the agent is away: socket, run_dir, state_dir and spool_max. Run this again when they change.

    With --standalone it runs the Python interpreter that runs this command, isolated from the runtime's own Python settings. It
    carries no settings: each call reads those of its own environment and of the settings file. Where an agent serves the same
    directories, the call is handed to it.

    With --mirrors networks may chain the types ovs-mirror-producer and ovs-mirror-consumer, which ovs-cni has, too; its own
    files are not replaced.

    With --seccomp-dir a pod may name the profile: localhostProfile: userspace-cni/dpdk.json. With it DPDK runs under the Pod
    Security level restricted. If it cannot be written, the plugin is installed all the same, and the exit code is 1.

    With --network the agent puts FILE into the runtimes' directory of networks (setting cni_conf_dir) under its name, once pods
    can be attached; another program's file is not replaced. With --standalone and no agent it is put there at once. A network
    that ADD would refuse is refused, with exit code 1. `--network none` removes it again, and so does uninstall.

    The file is replaced in one step, so that a runtime that starts it meanwhile gets the old one or the new one.
    """
    with progress("installing the plugin, and trying it"):
        names = (NAME, *TYPES) if mirrors else (NAME,)
        path, settings = (install_launcher(bin_dir, names), None) if standalone else install_shim(bin_dir, names)
    carried = "it carries no settings, each call reads its environment and the settings file"
    if settings is not None:
        carried = (
            f"the agent's socket is {settings.agent_socket}, "
            f"its records are in {settings.state_dir}, DELs while it is away go to {settings.state_dir}/spool, "
            f"at most {settings.spool_max}"
        )
    click.echo(f"installed {path}: {carried}")
    # after the plugin, which the node needs without these, too
    failed = []
    if seccomp_dir is not None:
        try:
            click.echo(f"installed {install_profile(seccomp_dir)}: pods name it as localhostProfile {PROFILE_NAME}")
        except InstallError as error:
            failed.append(f"the plugin is installed, the seccomp profile is not: {error}")
    if network is not None:
        try:
            click.echo(_network(network, ctx, standalone=standalone))
        except InstallError as error:
            failed.append(f"the plugin is installed, the network is not: {error}")
    if failed:
        raise InstallError("; ".join(failed))


def _network(file: str, ctx: click.Context, *, standalone: bool) -> str:
    """Keep the network of that file for the agent, or forget the one that is kept; what became of it. Raises InstallError."""
    from userspace_cni.cli.node.install_network import forget_network, keep_network

    try:
        site = open_site(ctx)
    except UserspaceError as error:
        raise InstallError(str(error)) from error
    with bind("warning"), progress("having the network put in place"):
        return forget_network(site) if file == NONE else keep_network(file, site, standalone=standalone)

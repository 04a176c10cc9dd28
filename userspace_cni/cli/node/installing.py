"""`install`: puts the plugin, and the seccomp profile if it is asked for, where runtime and kubelet look for them."""

from __future__ import annotations

import click

from userspace_cni.cli.node.install import NAME, NAMES, InstallError, install_launcher, install_shim
from userspace_cni.cli.node.installed import DirectoryName
from userspace_cni.cli.node.seccomp import NAME as PROFILE_NAME
from userspace_cni.cli.node.seccomp import install_profile
from userspace_cni.cli.view import progress


@click.command("install")
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
def install_command(standalone: bool, mirrors: bool, bin_dir: str, seccomp_dir: str | None) -> None:
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

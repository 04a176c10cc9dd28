"""Commands for people. Exit codes: 0 good, 1 finding or failure, 2 usage, 3 cannot reach what was asked."""

from __future__ import annotations

import click

from userspace_cni.cli.install import InstallError, install_launcher


@click.group()
@click.version_option(package_name="userspace-cni")
def userspace_cni() -> None:
    """CNI plugin of type 'userspace': vhost-user interfaces on OVS-DPDK."""


@userspace_cni.command()
@click.option("--standalone", is_flag=True, required=True, help="Install a launcher of the in-process plugin.")
@click.option(
    "--bin-dir",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The runtime's directory of CNI plugins, as /opt/cni/bin; made when missing.",
)
def install(standalone: bool, bin_dir: str) -> None:  # noqa: ARG001
    """Put the plugin where the container runtime looks for it: DIR/userspace.

    The file is replaced in one step, so that a runtime that starts it meanwhile gets the old one or the new one. It runs the
    Python interpreter that runs this command, isolated from the runtime's own Python settings.
    """
    try:
        path = install_launcher(bin_dir)
    except InstallError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"installed {path}")


def run() -> int:
    """Run the command line of this process; the exit code."""
    userspace_cni.main()
    return 0

"""`ovn trace`: the way of a packet between two logical ports, as ovn-trace finds it in the southbound database."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Final

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.ovn.opened_databases import give_time, open_databases
from userspace_cni.cli.site import CommandRefused, NodeCommand
from userspace_cni.ovn.known_cluster import list_router_macs
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.ovn_facts import NorthFacts, look_north
from userspace_cni.ovn.policy_traces import TracedGroup, explain_policies, look_groups
from userspace_cni.ovn.remotes import tls_files
from userspace_cni.ovn.tracing import find_port, write_packet

_TRACE_S: Final = 30
_TRACKED: Final = 16
"""Looks at the connection on the way, at most: each is to find a new one."""
_SUMMARY: Final = "# Summary trace.\n"


@click.command("trace", cls=NodeCommand, examples=("userspace-cni ovn trace default/client default/server",))
@click.argument("source")
@click.argument("target")
@click.option("--protocol", type=click.Choice(["tcp", "udp", "sctp"]), help="The packet's protocol; tcp if only a port is given.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port that the packet is to.")
@click.option("--detailed", is_flag=True, help="Show each logical flow, too.")
@click.pass_context
def trace_command(ctx: click.Context, source: str, target: str, protocol: str | None, port: int | None, detailed: bool) -> None:
    """Follow a packet from the logical port SOURCE to TARGET: each as NAMESPACE/POD, as POD, or by the port's name.

    It needs ovn-trace, of OVN. The packet is the first of a connection; none is sent. At the end are the policies that let it
    through, or that drop it. Exit code: 0 when it arrives, 1 when it does not or a port is not known, 2 for
    wrong settings, 3 when a database or ovn-trace does not answer.
    """
    _, databases = open_databases(ctx)
    client, what = databases.northbound, "looking at OVN's northbound database"
    north, macs, groups = client.read(_look, frozenset(), what, give_time())
    start, end = find_port(north.ports, source), find_port(north.ports, target)
    packet = write_packet(start, end, macs, protocol or ("tcp" if port else ""), port)
    files = tls_files(databases.settings, databases.southbound_remote)
    keys = [f"--private-key={files.key}", f"--certificate={files.certificate}", f"--ca-cert={files.authority}"] if files else []
    argv = [
        "ovn-trace",
        f"--db={databases.southbound_remote}",
        *keys,
        "--detailed",
        *([] if detailed else ["--summary"]),
        *["--ct=new"] * _TRACKED,
        start.switch,
        packet,
    ]
    view.note(f"ovn-trace {start.switch} '{packet}'")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TRACE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandRefused(f"running ovn-trace: {error}; it is in OVN's package", UNREACHABLE) from error
    if done.returncode:
        raise CommandRefused(f"ovn-trace: {done.stderr.strip() or f'exit code {done.returncode}'}", UNREACHABLE)
    whole, _, summary = done.stdout.partition(_SUMMARY)
    for line in (whole if detailed else summary).splitlines():
        click.echo(view.plain(line))
    for line in explain_policies(whole, groups, {"ingress": end.name, "egress": start.name}):
        click.echo(f"policies: {view.plain(line)}")
    arrived = f'output to "{end.name}"' in done.stdout or f'output("{end.name}")' in done.stdout
    if not arrived:
        raise CommandRefused(f"the packet does not arrive at {end.name}", FOUND)


def _look(session: NorthboundSession) -> tuple[NorthFacts, Mapping[str, str], Mapping[str, TracedGroup]]:
    return look_north(session), list_router_macs(session), look_groups(session)

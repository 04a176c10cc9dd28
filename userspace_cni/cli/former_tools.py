"""The programs of ovn-kubernetes' first tools, under their names and with their options, as far as each is built.

Each does what a command of `userspace-cni` does, with the names of then: the router is called as the first node, the join switch
has 100.64.1.0/24. An option that has no effect any more is named on stderr, and so is what is not built.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.host_paths import see_host_at
from userspace_cni.base.settings import load
from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.exit_codes import FOUND, USAGE
from userspace_cni.cli.main import run_program, userspace_cni
from userspace_cni.cli.ovn.gateway_writing import AskedOptions, set_gateway
from userspace_cni.cli.ovn.node_setup import RowWriter, SetUp, set_up
from userspace_cni.cli.ovn.opened_databases import open_databases, show_changes
from userspace_cni.cli.ovn.ovn_cni_plugin import OvnCniPlugin
from userspace_cni.cli.site import CommandRefused, NodeCommand, Site
from userspace_cni.ovn.chassis_ids import find_missing_datapath
from userspace_cni.ovn.databases import OvnDatabases
from userspace_cni.ovn.desired_rows import Changes
from userspace_cni.ovn.plan_writing import WriteMode
from userspace_cni.ovn.setting_up import AskedNode, init_both, init_node
from userspace_cni.ovn.topology import LogicalCluster, LogicalNode
from userspace_cni.ovn.topology_values import subnets_of

F = TypeVar("F", bound=Callable[..., Any])
JOIN: Final = "100.64.1.0/24"
_KEYS: Final = {"nb_privkey": "ovn_private_key", "nb_cert": "ovn_certificate", "nb_cacert": "ovn_ca_cert"}
_DAEMON: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


@click.group("ovn-k8s-overlay", cls=ProgramGroup)
def overlay() -> None:
    """ovn-kubernetes' tool for the logical network. See `userspace-cni ovn` for its successors."""


def _tls(command: F) -> F:
    for name, text in (("--nb-privkey", "private key"), ("--nb-cert", "certificate"), ("--nb-cacert", "authority's certificate")):
        command = click.option(name, default="", metavar="FILE", help=f"Our {text} for the northbound database.")(command)
    return command


@overlay.command("master-init", cls=NodeCommand)
@click.option("--cluster-ip-subnet", required=True, help="The subnet of all pods.")
@click.option("--master-switch-subnet", required=True, help="That of this node's.")
@click.option("--node-name", required=True, help="This node's name, and the router's.")
@click.option("--adopt", is_flag=True, help="Rows of these names that are not ours become ours, as those of the tools of then.")
@_tls
@click.pass_context
def master_init(
    ctx: click.Context, /, cluster_ip_subnet: str, master_switch_subnet: str, node_name: str, *, adopt: bool, **keys: str
) -> None:
    """Make the cluster's router and join switch, and this node's switch, in one transaction."""
    _succeeded_by("userspace-cni ovn init-cluster and init-node")
    cluster = LogicalCluster(
        subnets_of(cluster_ip_subnet, "--cluster-ip-subnet"), subnets_of(JOIN, "--join-subnet"), node_name, pair=True
    )
    _open(ctx, keys)
    site, databases = open_databases(ctx)
    asked = AskedNode(node_name, subnets_of(master_switch_subnet, "--master-switch-subnet"))
    _set_up(
        site, databases, lambda mode: init_both(databases.northbound, cluster, asked, mode), "--master-switch-subnet", adopt=adopt
    )


@overlay.command("minion-init", cls=NodeCommand)
@click.option("--cluster-ip-subnet", required=True, help="The subnet of all pods.")
@click.option("--minion-switch-subnet", required=True, help="That of this node's.")
@click.option("--node-name", required=True, help="This node's name.")
@click.option("--adopt", is_flag=True, help="Rows of these names that are not ours become ours, as those of the tools of then.")
@_tls
@click.pass_context
def minion_init(
    ctx: click.Context, /, cluster_ip_subnet: str, minion_switch_subnet: str, node_name: str, *, adopt: bool, **keys: str
) -> None:
    """Make this node's switch and its port on the cluster's router, and put the plugin ovn_cni and its network in place."""
    _succeeded_by("userspace-cni ovn init-node")
    reached = subnets_of(cluster_ip_subnet, "--cluster-ip-subnet")
    _open(ctx, keys)
    site, databases = open_databases(ctx)
    asked = AskedNode(node_name, subnets_of(minion_switch_subnet, "--minion-switch-subnet"))
    plugin = OvnCniPlugin.of(site)
    plugin.judge()

    def write_rows(mode: WriteMode) -> tuple[LogicalNode, Changes]:
        node, changes = init_node(databases.northbound, asked, mode)
        return (node if node.cluster_subnets else dataclasses.replace(node, cluster_subnets=reached)), changes

    _set_up(site, databases, write_rows, "--minion-switch-subnet", adopt=adopt, put=lambda: plugin.put(asked.subnets))


@overlay.command("gateway-init", cls=NodeCommand)
@click.option("--cluster-ip-subnet", required=True, help="Without effect: the cluster's router says it.")
@click.option("--physical-interface", default="", help="The NIC that leads outside. It has to be on a bridge already.")
@click.option("--bridge-interface", default="", help="Or the bridge, whose MAC and address the gateway shares.")
@click.option("--physical-ip", required=True, metavar="IP/LEN", help="The gateway's address outside.")
@click.option("--default-gw", default="", help="The router outside.  [default: that of the bridge's default route]")
@click.option("--node-name", required=True, help="This node's name.")
@click.option("--rampout-ip-subnets", default="", help="Subnets of pods that leave by this gateway.")
@click.option("--adopt", is_flag=True, help="Rows of these names that are not ours become ours, as those of the tools of then.")
@_tls
@click.pass_context
def gateway_init(ctx: click.Context, /, physical_interface: str, bridge_interface: str, **given: Any) -> None:
    """Make this node's gateway router."""
    if bool(physical_interface) == bool(bridge_interface):
        raise CommandRefused("give either --physical-interface or --bridge-interface", USAGE)
    _without_effect(ctx, {"cluster_ip_subnet": given["cluster_ip_subnet"]})
    _succeeded_by("userspace-cni ovn init-gateway")
    _open(ctx, {key: given[key] for key in _KEYS})
    site, databases = open_databases(ctx)
    asked = AskedOptions(
        given["physical_ip"],
        given["default_gw"],
        given["node_name"],
        bridge=bridge_interface,
        interface=physical_interface,
        source_subnets=given["rampout_ip_subnets"],
        shared=bool(bridge_interface),
        adopt=given["adopt"],
    )
    written = set_gateway(site, databases, asked)
    show_changes(written.changes, written.ids, dry_run=False)


@click.group("ovn-k8s-util", cls=ProgramGroup)
def util() -> None:
    """ovn-kubernetes' tool for a node's NICs."""


@util.command("nics-to-bridge", cls=NodeCommand)
@click.argument("nics", nargs=-1, required=True)
@click.pass_context
def nics_to_bridge(ctx: click.Context, nics: tuple[str, ...]) -> None:
    """Make a bridge of each NIC, breth0 of eth0, to which its addresses move, also those of the default route. It lasts."""
    _succeeded_by("userspace-cni nic-to-bridge")
    command = userspace_cni.get_command(ctx, "nic-to-bridge")
    if command is None:
        raise CommandRefused("this installation has no command nic-to-bridge", FOUND)
    for nic in nics:
        options = [nic, "--persist", "--move-addresses", "primary", "--bridge", f"br{nic}"]
        with command.make_context("nic-to-bridge", options, parent=ctx) as made:
            made.command.invoke(made)


@click.command("ovn-k8s-watcher", cls=NodeCommand, context_settings=_DAEMON)
@click.option("--overlay", "is_overlay", is_flag=True, help="As always.")
@click.option("--adopt", is_flag=True, help="Have rows of the names of pods' ports that are not marked become ours.")
@click.option("--pidfile", is_flag=False, flag_value="its default", default="", help="Without effect.")
@click.option("--log-file", is_flag=False, flag_value="its default", default="", help="Without effect.")
@click.option("--detach", is_flag=True, help="Without effect.")
@click.pass_context
def watcher(ctx: click.Context, /, *, adopt: bool, **given: Any) -> None:
    """Give pods logical ports, until SIGTERM: `userspace-cni ovn watch`. It stays in the foreground, and logs to stderr."""
    _without_effect(ctx, {key: value for key, value in given.items() if key != "is_overlay"})
    _succeeded_by("userspace-cni ovn watch")
    group = userspace_cni.get_command(ctx, "ovn")
    if group is None:
        raise CommandRefused("this installation has no command ovn", FOUND)
    with group.make_context("ovn", ["watch", *(["--adopt"] if adopt else [])], parent=ctx) as made:
        made.command.invoke(made)


@click.command("ovn-k8s-gateway-helper", cls=NodeCommand, context_settings=_DAEMON)
@click.option("--physical-bridge", required=True)
@click.option("--physical-interface", required=True)
@click.option("--pidfile", is_flag=False, flag_value="its default", default="", help="Without effect.")
@click.option("--log-file", is_flag=False, flag_value="its default", default="", help="Without effect.")
@click.option("--detach", is_flag=True, help="Without effect.")
@click.pass_context
def gateway_helper(ctx: click.Context, /, physical_bridge: str, physical_interface: str, **given: Any) -> None:
    """Share a NIC between the node and its gateway router: `userspace-cni ovn gateway-helper`. It stays in the foreground."""
    from userspace_cni.cli.ovn.gateway_command import keep_gateway

    _without_effect(ctx, given)
    _succeeded_by("userspace-cni ovn gateway-helper")
    keep_gateway(ctx, physical_bridge, physical_interface)


def run_overlay() -> int:
    """The program ovn-k8s-overlay; its exit code."""
    return run_program(overlay)


def run_util() -> int:
    """The program ovn-k8s-util; its exit code."""
    return run_program(util)


def run_watcher() -> int:
    """The program ovn-k8s-watcher; its exit code."""
    return run_program(watcher)


def run_gateway_helper() -> int:
    """The program ovn-k8s-gateway-helper; its exit code."""
    return run_program(gateway_helper)


def _set_up(
    site: Site, databases: OvnDatabases, rows: RowWriter, subnet: str, *, adopt: bool, put: Callable[[], bool] = lambda: False
) -> None:
    """Make the node's rows, port and datapath. Its other external_ids are set by hand before, as then.

    `subnet`: the option that says the node's. `put` puts more in place, and says whether anything.
    """
    with _words_of_then(subnet):
        _, changes, ids = set_up(site, databases, SetUp(rows, find_missing_datapath, adopt=adopt))
    if not put() or changes.rows or ids:
        show_changes(changes, ids, dry_run=False)


@contextmanager
def _words_of_then(subnet: str) -> Iterator[None]:
    """Have errors name the options that these programs have; `subnet` is the one of the node's."""
    names = {"--subnet": subnet, "--cluster-subnet": "--cluster-ip-subnet", "--join-subnet": "the subnet of the switch join"}
    try:
        yield
    except InvalidConfig as error:
        said = (
            re.sub(r"--(cluster-|join-)?subnet\b", lambda match: names[match[0]], each) for each in (error.message, error.details)
        )
        raise InvalidConfig(*said) from error


def _open(ctx: click.Context, keys: Mapping[str, str]) -> None:
    """Work with the settings in force, and with the files that the options name. Raises UserspaceError."""
    given = {_KEYS[key]: value for key, value in keys.items() if value}
    site = ctx.find_object(Site)
    if site is None:
        site = Site(load(os.environ))
        see_host_at(site.settings.host_root)
        ctx.call_on_close(site.close)
    ctx.obj = dataclasses.replace(site, settings=dataclasses.replace(site.settings, **given)) if given else site  # type: ignore[arg-type]


def _succeeded_by(command: str) -> None:
    view.note(f"this program is kept for scripts: its successor is {command}")


def _without_effect(ctx: click.Context, given: Mapping[str, object]) -> None:
    named = [f"--{key.replace('_', '-')}" for key, value in given.items() if value] + list(ctx.args)
    if named:
        view.note(f"without effect: {' '.join(named)}")

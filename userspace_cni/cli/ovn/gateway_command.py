"""`ovn gateway-helper`: the agent's thread for a bridge that OVN's gateway router shares, as a process of its own."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

import click

from userspace_cni.base.log import bind, say
from userspace_cni.base.signals import Signals, waking
from userspace_cni.cli.name_completion import bridge_names, nic_names
from userspace_cni.cli.site import NodeCommand, open_site, patient

PURPOSE: Final = "gateway-helper"
_STEPS_S: Final = 20.0
"""Seconds for the patch pair, on a node that is not busy."""


@click.command("gateway-helper", cls=NodeCommand, examples=("userspace-cni ovn gateway-helper --bridge breth0 --interface eth0",))
@click.option(
    "--bridge", required=True, shell_complete=bridge_names, help="The bridge that the gateway router shares with this node."
)
@click.option("--interface", default="", shell_complete=nic_names, help="Its NIC.  [default: its only one]")
@click.option("--patch", default="", help="Its patch port to OVN's bridge, of another program.  [default: a pair of our own]")
@click.pass_context
def helper_command(ctx: click.Context, /, bridge: str, interface: str, patch: str) -> None:
    """Keep the flows by which OVN's gateway router and this node share one MAC and one address, until SIGTERM.

    What OVN has begun, and what asks for a NodePort or an external address of a Service, goes to OVN; all other to the node.
    Services are read with an account of the API server: the setting kubeconfig, the pod's service account, or k8s-api-server in
    external_ids of Open_vSwitch. The agent does the same where ovn_gateway_bridge is set. At its end flows and patch pair are
    removed; if it is killed, the agent, `gc` or the next run removes them. Settings: ovn_bridge, ovn_conntrack_zone.

    Exit code: 0 after SIGTERM, 1 when the bridge cannot be shared, 2 for a bad setting, 3 when something does not answer.
    """
    keep_gateway(ctx, bridge, interface, patch)


def keep_gateway(ctx: click.Context, bridge: str, interface: str = "", patch: str = "") -> None:
    """Do it, until SIGTERM or SIGINT. Raises UserspaceError."""
    from userspace_cni.attachment.runs import Run
    from userspace_cni.attachment.steps import Steps, run_marks
    from userspace_cni.cli.ovn.opened_databases import open_databases, switch_account
    from userspace_cni.network.gateway_helper import GatewayService
    from userspace_cni.network.shared_gateways import SharedGateway, plan_steps
    from userspace_cni.ovn.switch_account import SERVER

    asked = SharedGateway(bridge, interface, patch)
    site = open_site(ctx)
    site.require_root("changing the flows of a bridge")
    node, stopping = site.drivers, []

    def stop(number: int, _: FrameType | None) -> None:
        stopping.append(number)

    node.switch.ports.connect(patient(_STEPS_S))
    here, session = site.drivers.installation, None
    if here.has_account:
        session = here.clients.of("").session
    else:
        _, databases = open_databases(ctx)
        if databases.ids.get(SERVER):
            session = switch_account(site, databases).open_session()
    woken, store = waking(), node.store
    hearing = Signals(stop, (signal.SIGTERM, signal.SIGINT), ignored_too=True)
    with hearing, bind("info"), Run(PURPOSE, store, node.driver) as run:
        marks = run_marks(run.id.name, store.journal.identity()) | {"purpose": PURPOSE}
        run.add(plan_steps(asked, node, marks, int(run.id.number, 16)), patient(_STEPS_S))
        service = GatewayService(node, lambda: Steps(run.steps).gateway_flows, session)
        service.start()
        say("info", "the gateway's flows are kept", bridge=asked.bridge, zone=here.settings.ovn_conntrack_zone)
        try:
            while not stopping:
                os.read(woken, 64)
        finally:
            service.stop()

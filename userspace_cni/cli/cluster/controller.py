"""`controller`: the process that decides for the whole cluster. It is put together here with the agent's ports for pages."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from userspace_cni.cli.site import NodeCommand, open_site

if TYPE_CHECKING:
    from userspace_cni.agent.tcp import TcpPages
    from userspace_cni.base.settings import Settings
    from userspace_cni.controller.controller_service import ServedController


@click.command("controller", cls=NodeCommand, examples=("userspace-cni controller",))
@click.pass_context
def controller_command(ctx: click.Context) -> None:
    """Sum up the nodes' reports in the statuses of ProviderNetworks, Vlans and Subnets, give nodes their ranges of Subnets, and
    delete objects of nodes that are gone, until SIGTERM. With ovn_nb, keep the logical ports of pods in OVN, too.

    Several may run: the one that holds the Lease acts. It needs an account of the API server (setting kubeconfig, or the pod's
    service account), no root, and nothing of a node. Settings: controller_namespace, health_listen, metrics_listen, log_level.

    Exit code: 0 after SIGTERM, 2 without an account or for a bad setting, 3 when it cannot listen.
    """
    from userspace_cni.controller.controller_service import make_controller, serve

    settings = open_site(ctx).settings
    ctx.exit(
        serve(
            settings,
            os.environ,
            lambda session: make_controller(session, settings),
            lambda controller: make_page_ports(settings, controller),
        )
    )


def make_page_ports(settings: Settings, controller: ServedController) -> Sequence[TcpPages]:
    """The ports on which a controller is asked for health and metrics, as the settings say."""
    from userspace_cni.agent.served_pages import PageContent, ServedPage
    from userspace_cni.agent.tcp import TcpPages
    from userspace_cni.base.metrics import CONTENT_TYPE
    from userspace_cni.pod.program_build import recorded_build

    build = recorded_build()

    def health(problems: list[str]) -> PageContent:
        body = {"version": build.version, "commit": build.commit, "problems": problems}
        return PageContent(503 if problems else 200, json.dumps(body).encode() + b"\n")

    metrics = ServedPage("/metrics", lambda: PageContent(200, controller.metrics.render(), CONTENT_TYPE))
    healthz = ServedPage("/healthz", lambda: health(controller.problems()))
    readyz = ServedPage("/readyz", lambda: health(controller.problems() + controller.obstacles()))
    pages = (
        ("metrics_listen", settings.metrics_listen, {"/metrics": metrics}),
        ("health_listen", settings.health_listen, {"/healthz": healthz, "/readyz": readyz}),
    )
    return [TcpPages(setting, listen, shown) for setting, listen, shown in pages if listen]

"""`ovn watch`: the controller's part for logical ports, as a process of its own beside OVN's databases."""

from __future__ import annotations

import os

import click

from userspace_cni.base.root import HostRoot
from userspace_cni.cli.site import NodeCommand, open_site
from userspace_cni.node.installation import Installation


@click.command("watch", cls=NodeCommand, examples=("userspace-cni ovn watch",))
@click.option("--adopt", is_flag=True, help="Have rows of the names of pods' ports that are not marked become ours.")
@click.pass_context
def watch_command(ctx: click.Context, adopt: bool) -> None:
    """Give pods logical ports in OVN's northbound database, and write their addresses into the pods, until SIGTERM.

    Several may run: the one that holds Lease and lock of the database acts. It needs an account of the API server: the setting
    kubeconfig, the pod's service account, or k8s-api-server, k8s-ca-certificate and k8s-api-token in external_ids of
    Open_vSwitch. It needs root to ask the switch for that, or where the database is; not with kubeconfig and ovn_nb. The
    controller does the same where ovn_nb is set. With ovn_services and ovn_policies, as by default, Services and policies
    become rows, too. Settings: these, ovn_nb, ovn_naming, ovn_default_network, ovn_default_limits, ovn_pod_ports,
    policy_fragments, kubeovn_annotations, controller_namespace, health_listen, metrics_listen, log_level, the rules.

    Exit code: 0 after SIGTERM, 2 without an account or for a bad setting, 3 when it cannot listen.
    """
    from userspace_cni.cli.cluster.controller import make_page_ports
    from userspace_cni.controller.controller_service import serve
    from userspace_cni.controller.port_service import PortController, read_task

    settings, remote, session = open_site(ctx).settings, "", None
    has_account = Installation(settings, os.environ).has_account
    if not (settings.ovn_nb and has_account):
        from userspace_cni.cli.ovn.opened_databases import open_databases, switch_account

        site, databases = open_databases(ctx)
        settings, remote = databases.settings, databases.northbound_remote
        session = None if has_account else switch_account(site, databases).open_session()
    task = read_task(settings, remote, adopts=adopt, map_path=HostRoot(settings.host_root).path)
    ctx.exit(
        serve(
            settings,
            os.environ,
            lambda session: PortController(session, settings.controller_namespace, task),
            lambda controller: make_page_ports(settings, controller),
            session,
        )
    )

"""`kubevirt`: what a cluster with KubeVirt needs, and whether it will work."""

from __future__ import annotations

import click

from userspace_cni.cli.kubevirt.define import define_command
from userspace_cni.cli.kubevirt.doctor import doctor_command
from userspace_cni.cli.kubevirt.lint import lint_command
from userspace_cni.cli.kubevirt.manifests import manifests_command


@click.group("kubevirt", short_help="Manifests for KubeVirt, and what in them or on this node would fail.")
def kubevirt_command() -> None:
    """VM interfaces on OVS-DPDK: manifests for KubeVirt, and what in them or on this node would fail. See docs/kubevirt.md."""


kubevirt_command.add_command(lint_command)
kubevirt_command.add_command(manifests_command)
kubevirt_command.add_command(doctor_command)
kubevirt_command.add_command(define_command)

"""`kubevirt`: what a cluster with KubeVirt needs, and whether it will work."""

from __future__ import annotations

import click

from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.deferred import defer


@click.group("kubevirt", cls=ProgramGroup)
def kubevirt_command() -> None:
    """VM interfaces on OVS-DPDK: manifests for KubeVirt, and what in them or on this node would fail. See docs/kubevirt.md."""


@defer(kubevirt_command, "lint", "Report what in manifests would fail.")
def _lint() -> click.Command:
    from userspace_cni.cli.kubevirt.kubevirt_lint import lint_command

    return lint_command


@defer(kubevirt_command, "manifests", "Print what KubeVirt needs: registration, network, sample VM.")
def _manifests() -> click.Command:
    from userspace_cni.cli.kubevirt.kubevirt_manifests import manifests_command

    return manifests_command


@defer(kubevirt_command, "doctor", "Report what on this node would fail.")
def _doctor() -> click.Command:
    from userspace_cni.cli.kubevirt.doctor import doctor_command

    return doctor_command


@defer(kubevirt_command, "define", "Print what the sidecar would make of a domain.")
def _define() -> click.Command:
    from userspace_cni.cli.kubevirt.define import define_command

    return define_command

"""`kubevirt`: what a cluster with KubeVirt needs, and whether it will work."""

from __future__ import annotations

import click


@click.group("kubevirt", short_help="Manifests for KubeVirt, and what in them or on this node would fail.")
def kubevirt_command() -> None:
    """VM interfaces on OVS-DPDK: manifests for KubeVirt, and what in them or on this node would fail. See docs/kubevirt.md."""

"""How this machine's distribution has Open vSwitch with DPDK: which package, which program, and how the service is started."""
# Paths of another root rather than pathlib's.
# ruff: noqa: PTH110

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.machine.kernel_files import read_link, read_word

WITH_DPDK: Final = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
"""Debian's and Ubuntu's daemon with DPDK, beside the one without."""
_ALTERNATIVE: Final = "/etc/alternatives/ovs-vswitchd"
_PROGRAM: Final = "/usr/sbin/ovs-vswitchd"
_FAMILIES: Final = ("debian", "ubuntu")


@dataclass(frozen=True)
class SwitchPackages:
    """`debian`: the distribution is Debian or made of it. `installed`: Open vSwitch is; `with_dpdk`: one with DPDK, None where
    only a start of it would tell. `chosen`: the program that Debian's alternative starts, "" without alternatives.

    `service`: its name. `systemd`: it runs the services here. `kept_mounts`: where /etc/fstab mounts hugetlbfs.
    """

    debian: bool = False
    installed: bool = False
    with_dpdk: bool | None = None
    chosen: str = ""
    service: str = "openvswitch"
    systemd: bool = False
    kept_mounts: frozenset[str] = frozenset()


def look_at_packages(root: HostRoot = HERE) -> SwitchPackages:
    """Reads what the distribution has left below /etc, /usr and /run; no program is run."""
    words = dict(line.partition("=")[::2] for line in read_word("/etc/os-release", root).splitlines())
    family = f"{words.get('ID', '')} {words.get('ID_LIKE', '')}".replace('"', "").split()
    debian = any(each in _FAMILIES for each in family)
    lines = [line.split() for line in read_word("/etc/fstab", root).splitlines() if not line.lstrip().startswith("#")]
    installed = os.path.exists(root.path(_PROGRAM))
    return SwitchPackages(
        debian=debian,
        installed=installed,
        with_dpdk=os.path.exists(root.path(WITH_DPDK)) if debian else None,
        chosen=read_link(_ALTERNATIVE, root),
        service="openvswitch-switch" if debian else "openvswitch",
        systemd=os.path.exists(root.path("/run/systemd/system")),
        kept_mounts=frozenset(fields[1] for fields in lines if len(fields) > 2 and fields[2] == "hugetlbfs"),
    )

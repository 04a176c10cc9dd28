"""Names, socket path and MAC of a KubeVirt VM's interface, which plugin and sidecar each derive from names that both know.

The plugin makes the directory and the port when the VM's launcher pod is attached; the sidecar in that pod writes the socket's
path into the VM's definition. Because both derive these values, they need not exchange them, and the pod to which a VM migrates
has the same values as the one from which it comes. Pure.

Sources: KubeVirt's pkg/network/namescheme (interface names), pkg/virt-controller/services (the pod's name and volumes).
"""

from __future__ import annotations

import hashlib
import re

from . import mac

QEMU_ID = 107
"""User and group of QEMU and of the sidecar in a launcher pod."""
VOLUME = "public"
"""The emptyDir of every launcher pod, mounted in its compute container at MOUNT."""
MOUNT = "/var/run/kubevirt"
DIRECTORY = "vhostuser"
"""Our directory in that volume; it holds the sockets of all interfaces of the VM."""
MAPPED_DIR = f"{MOUNT}/{DIRECTORY}/"
"""That directory as QEMU sees it."""

DOMAIN = "kubevirt.io/domain"
"""Annotation of a launcher pod: the VM's name."""

_PREFIX = "virt-launcher-"
_MACHINE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)
_GENERATED = 58
"""Characters of metadata.generateName that the API server keeps; five random ones follow (apiserver, storage/names)."""
_RANDOM = 5
_POD = re.compile(r"virt-launcher-.+[a-z0-9]{5}", re.ASCII)


def interface_name(network: str) -> str:
    """The pod's interface for a VM's secondary network, CNI_IFNAME: `pod` and 11 hexadecimal digits (legacy pods: net1, …)."""
    return f"pod{hashlib.sha256(network.encode()).hexdigest()[:11]}"


def socket_file(ifname: str) -> str:
    return f"{ifname}.sock"


def socket_path(ifname: str) -> str:
    """The socket as QEMU sees it."""
    return MAPPED_DIR + socket_file(ifname)


def machine_of_pod(pod: str) -> str:
    """The VM's name, or the part of it that its launcher pod's name has; "" for another pod."""
    if not _POD.fullmatch(pod):
        return ""
    return pod[len(_PREFIX) : -_RANDOM].rstrip("-.")


def machine_part(machine: str) -> str:
    """The part of a VM's name that its launcher pod's name has: all of it, unless it is longer than 43 characters."""
    return f"{_PREFIX}{machine}-"[:_GENERATED][len(_PREFIX) :].rstrip("-.")


def machine_name(pod: str, domain: str) -> str:
    """The VM of a launcher pod, "" for another pod. `domain`: the pod's annotation DOMAIN, "" where it is not known.

    The annotation has the whole name. It counts only if the pod's name fits: a user who may write annotations cannot name
    another VM.
    """
    found = machine_of_pod(pod)
    return domain if found and _MACHINE.fullmatch(domain) and machine_part(domain) == found else found


def derive_mac(namespace: str, machine: str, ifname: str) -> str:
    """The locally administered unicast MAC of a VM's interface for which none is given; `machine` as `machine_part` has it."""
    return mac.derive_mac(namespace, machine, ifname)

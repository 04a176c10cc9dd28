"""What plugin and sidecar derive from names alone, on either side of a migration."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.pod import launcher

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
RANDOM = st.text("bcdfghjklmnpqrstvwxz2456789", min_size=5, max_size=5)


def pod_of(machine: str, random: str = "x9z2q") -> str:
    """The name that the API server makes of metadata.generateName."""
    return f"virt-launcher-{machine}-"[:58] + random


@given(NAMES, RANDOM)
def test_both_sides_know_the_same_of_a_name(machine: str, random: str) -> None:
    """What the plugin reads from the pod's name is what the sidecar makes of the VM's name, however long it is."""
    assert launcher.machine_of_pod(pod_of(machine, random)) == launcher.machine_part(machine)


@given(NAMES, RANDOM)
def test_the_whole_name_is_taken_from_the_annotation(machine: str, random: str) -> None:
    """Together with the annotation that KubeVirt writes, the whole name is known."""
    assert launcher.machine_name(pod_of(machine, random), machine) == machine


@pytest.mark.parametrize("domain", ["", "vm-2", "vm", "vm-1-x", "vm-1\n", "VM-1", "vm-1 ", "x" * 300, "vm-1\0"])
def test_an_annotation_that_does_not_fit_is_not_believed(domain: str) -> None:
    """An annotation can only complete the pod's name; any other one is ignored."""
    assert launcher.machine_name(pod_of("vm-1"), domain) == "vm-1"


@pytest.mark.parametrize(
    "pod", ["", "app", "virt-launcher-", "virt-launcher-abcde", "virt-launcher-vm-ABCDE", "x-virt-launcher-v-abcde"]
)
def test_a_pod_that_is_no_launcher(pod: str) -> None:
    """Another pod has no VM, whatever its annotation says."""
    assert launcher.machine_of_pod(pod) == launcher.machine_name(pod, "vm-1") == ""


def test_socket_and_interface() -> None:
    """The names for a network of a VM: 11 digits of a hash as KubeVirt has them, the same in every pod."""
    ifname = launcher.interface_name("red")
    assert ifname == f"pod{hashlib.sha256(b'red').hexdigest()[:11]}"
    assert len(ifname) < 16
    assert launcher.socket_path(ifname) == f"/var/run/kubevirt/vhostuser/{ifname}.sock"


@given(st.text(), NAMES, st.text())
def test_mac_is_one_of_a_station(namespace: str, machine: str, ifname: str) -> None:
    """The MAC is locally administered and no group's, whatever it is derived from."""
    mac = launcher.derive_mac(namespace, machine, ifname)
    assert int(mac[:2], 16) & 3 == 2
    assert len(bytes.fromhex(mac.replace(":", ""))) == 6

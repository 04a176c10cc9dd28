"""The names of the traps of vhost-user under KubeVirt, for sidecar, lint and doctor. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]
"""error: the VM does not start, or has no network; warning: this may happen later; note: good to know."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")


@dataclass(frozen=True)
class Trap:
    """One trap that was found. `subject`: file and object; `path`: the place in the object, "" for all of it.

    `remedy`: what to do about it, in one sentence.
    """

    name: str
    severity: Severity
    subject: str
    message: str
    remedy: str
    path: str = ""

    @property
    def why(self) -> str:
        return TRAPS.get(self.name, "")


TRAPS: Final[Mapping[str, str]] = {
    "absent-interface": "an interface is to be absent, which KubeVirt has for bridge interfaces only: it refuses the VM",
    "annotation-place": "an annotation stands at the VM, not in its template: it has no effect",
    "bad-input": "an input from KubeVirt, Kubernetes or a file cannot be read",
    "binding-nad": "the binding names a network definition of its own, for which a second CNI plugin is run at each interface",
    "consumer-missing": "the network is not said to be for VMs: the socket is where QEMU does not look, and the VM waits",
    "directory-changed": "the socket's directory lacks the owner, mode or label that it was given: others may get at it",
    "domain-attachment": "KubeVirt adds a tap device of its own for the interface, beside or in place of the vhost-user one",
    "dra-not-mounted": "the sidecar does not see the DRA driver's metadata of the socket, and the VM is not defined",
    "failure-ignored": "when the sidecar fails, the VM starts without its vhost-user interface, without an error",
    "field-case": "a field's name is written in another case than it has: Kubernetes does not know it, and drops or refuses it",
    "foreign-interface": "the name of the interface is taken by one of another type: the vhost-user one is not added",
    "foreign-network": "the network is another CNI plugin's, which makes no port for the socket: the VM does not run",
    "given-twice": "an object is in the files twice: the one that is applied last counts, and only that one is the cluster's",
    "guest-not-up": "QEMU is connected and the guest's driver is not up: it is paused, boots, has crashed, or is being migrated",
    "hco-overwrites": "the HyperConverged operator rewrites the KubeVirt object, and the registration is gone",
    "hugepages-short": "the guest needs more huge pages than there are, or of a size that none has, or a part of one: no start",
    "ignored-option": "the network has a key that the plugin does not know or use: it has no effect",
    "iommu": "DPDK in the guest finds no IOMMU for vfio-pci, or the switch does not know of it: no packets",
    "kernel-binding": "the VM wants a kernel interface of a network that has none: it does not start",
    "lossy-sidecar": "another sidecar rewrites the definition from a model that has no vhost-user socket: libvirt refuses it",
    "mac-conflict": "two interfaces have one MAC: frames go to the one that sent last",
    "mac-mismatch": "the VM and its network have different MACs, or one that no NIC can have: the VM is not defined",
    "mixed-multus-and-dra": "KubeVirt refuses a VM with networks of Multus and of resource claims",
    "mtu-element": "libvirt up to 11.3, or a newer one, cannot set an MTU on a vhost-user interface: the VM does not start",
    "mtu-mismatch": "the guest sends larger frames than the port takes: they are dropped, small ones pass",
    "network-refused": "the plugin refuses the network's configuration: the VM's pod is never made",
    "no-device-info": "the sidecar does not know where the socket is and derives it, which is wrong with a device plugin's",
    "no-hook-directory": "the sidecar has nowhere to put its socket: virt-launcher waits for it and gives up",
    "no-hugepages": "guest memory is ordinary pages: it works, slower",
    "no-listener": "no process listens at the socket, or none connects: the VM is started and does not run",
    "no-shared-memory": "the switch cannot see the guest's memory: libvirt refuses the VM, or it has no packets",
    "no-source": "the place of an interface's socket is not known: the VM is not defined",
    "no-vhost-directory": "the launcher pod has no directory for the socket, or none that QEMU may write: the VM does not start",
    "not-given": "an object that matters was not given, or may not be read, and was not checked",
    "not-migratable": "KubeVirt does not migrate the VM, which is noticed when a node is drained",
    "other-binding": "the sidecar does not know under which name it is registered, or is another's too: the VM is not defined",
    "other-namespace": "the network is in another namespace than the one that the VM names: its pod is never made",
    "ovs-user": "ovs-vswitchd runs as a user who may not open QEMU's socket: the VM is started and does not run",
    "path-not-allowed": "the socket would be where QEMU cannot make one, or should not: the VM is not defined",
    "path-too-long": "a unix socket's path has 107 bytes at most: QEMU or the switch refuses it",
    "pci-address": "the PCI address that an interface asks for is another device's: libvirt refuses the VM",
    "plugin-hooks": "the Plugin asks our sidecar for no definition, or for what it does not have: no interface, or no start",
    "plugin-pruned": "the Plugin has lost its hook, which this KubeVirt's API does not know: no interface, without an error",
    "plugin-socket": "KubeVirt does not find the sidecar's socket, waits 30 seconds and gives up",
    "plugin-version": "the Plugin's hooks are another KubeVirt's, and are dropped: no interface, without an error",
    "plugins-gate": "with gate Plugins and a Plugin, KubeVirt rewrites the definition from a model without vhost-user sockets",
    "pod-network": "the interface is on the pod's own network: vhost-user only if this plugin makes that, and the only one",
    "port-changed": "the port was changed: packets go to another place, or the port is not known as ours",
    "port-down": "the port is absent or not open: QEMU waits for the switch, and the VM's start hangs",
    "post-copy": "a migration that turns to post-copy fails with a vhost-user interface, and takes the VM with it",
    "private-memory": "guest memory is private, and the switch cannot see it: libvirt refuses the VM, or it has no packets",
    "queues-over-port": "more queues than a DPDK port takes: QEMU gives up on the connection, and there is no network",
    "queues-over-vcpus": "queues that no vCPU serves: memory and polling time for nothing, or no multiqueue at all",
    "reconnect": "libvirt refuses a listening socket that is to reconnect",
    "ring-size": "libvirt or QEMU refuses the ring's size: the VM does not start",
    "selinux": "SELinux may keep the switch from QEMU's socket: the VM is started and does not run",
    "server-mode": "the switch makes the socket and QEMU connects: its restart ends the VM's network, a start may hang",
    "short-mount": "the switch has no way to the pod's directory that is short enough and follows no link",
    "sidecar-memory": "the sidecar is killed for want of memory, and with it the VM's start",
    "socket-name-collision": "two sidecars or two interfaces have one socket's name: the launcher ends, or one has no network",
    "target-managed": "libvirt refuses a vhost-user interface whose target is not managed",
    "two-bindings": "an interface has two ways to be bound, and KubeVirt takes exactly one: it refuses the VM",
    "unknown-binding": "the VM names a binding that KubeVirt does not have: its pod is never made, or the interface is another",
    "unknown-kind": "an object is of a kind that its API group lacks: it was not checked, and the cluster refuses it",
    "wrong-model": "only virtio models have a vhost-user backend: libvirt refuses the VM",
}
"""Name of each trap -> what happens to a VM that falls into it, in half a sentence. docs/kubevirt.md lists them all."""

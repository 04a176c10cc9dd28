"""MAC addresses as KubeVirt, Multus and device drivers write them, in the one form that is compared and defined. Pure."""

from __future__ import annotations

from kubevirt.sidecar_errors import BadInput
from userspace_cni.pod.mac import is_unicast, six_octets


def read_mac(text: str, where: str, remedy: str) -> str:
    """Return the MAC in lower case, with colons; "" for none. Takes what KubeVirt does, and blanks around. Raises BadInput.

    No interface can have a group address, which libvirt refuses, or an all-zero one, which a switch never learns.
    """
    written = text.strip(" \t")
    if not written:
        return ""
    mac = six_octets(written)
    if not mac:
        raise BadInput(f"{where} is {text[:64]!r}: it must be six octets in hexadecimal, such as 02:00:00:00:00:01", remedy)
    if not is_unicast(mac):
        raise BadInput(f"{where} is {mac}: an interface needs a unicast address, with an even first octet", remedy)
    return mac

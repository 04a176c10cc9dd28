"""MAC addresses as KubeVirt, Multus and device drivers write them, in the one form that is compared and defined. Pure."""

from __future__ import annotations

import re
from typing import Final

from kubevirt.errors import BadInput

_WRITTEN: Final = re.compile(r"[0-9a-f]{2}([:-])[0-9a-f]{2}(?:\1[0-9a-f]{2}){4}", re.ASCII)


def read_mac(text: str, where: str, remedy: str) -> str:
    """Return the MAC in lower case, with colons; "" for none. Takes dashes, as KubeVirt does, and blanks around. Raises BadInput.

    No interface can have a group address, which libvirt refuses, or an all-zero one, which a switch never learns.
    """
    mac = text.strip(" \t").lower()
    if not mac:
        return ""
    if not _WRITTEN.fullmatch(mac):
        raise BadInput(f"{where} is {text[:64]!r}: it must be six octets in hexadecimal, as 02:00:00:00:00:01", remedy)
    mac = mac.replace("-", ":")
    if int(mac[:2], 16) & 1 or not int(mac.replace(":", ""), 16):
        raise BadInput(f"{where} is {mac}: an interface needs a unicast address, with an even first octet", remedy)
    return mac

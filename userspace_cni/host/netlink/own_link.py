"""Sets up a link that its caller has made in its own namespace, as a tap's; touches no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from userspace_cni.base.errors import UserspaceError


@dataclass(frozen=True)
class LinkSettings:
    """The settings of a link. `mac` "" and `mtu` None keep the kernel's own; `addresses` with prefix length, as 10.1.1.2/24."""

    mac: str = ""
    mtu: int | None = None
    addresses: tuple[str, ...] = ()


def set_up(name: str, settings: LinkSettings) -> None:
    """Set MAC address, MTU and addresses of the link `name` in the namespace of this process, and set it up.

    Raises UserspaceError with the refused setting and the kernel's reason. Source: rtnetlink(7).
    """
    from ipaddress import ip_interface

    from pyroute2 import IPRoute

    with _translated(f"link {name}: finding it"), IPRoute() as kernel:
        index = next(iter(kernel.link_lookup(ifname=name)), None)
        if index is None:
            raise UserspaceError(f"link {name}: it is not there any more", "another process has deleted or renamed it: ip link")
        if settings.mac:
            with _translated(f"link {name}: setting the MAC address {settings.mac}"):
                kernel.link("set", index=index, address=settings.mac)
        if settings.mtu is not None:
            with _translated(f"link {name}: setting the MTU {settings.mtu}"):
                kernel.link("set", index=index, mtu=settings.mtu)
        for text in settings.addresses:
            with _translated(f"link {name}: adding the address {text}"):
                address = ip_interface(text)
                kernel.addr("add", index=index, address=str(address.ip), prefixlen=address.network.prefixlen)
        with _translated(f"link {name}: setting it up"):
            kernel.link("set", index=index, state="up")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn errors of netlink, of sockets and of addresses into ours."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise UserspaceError(f"{what}: {os.strerror(error.code)}") from error
    except OSError as error:
        raise UserspaceError(f"{what}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserspaceError(f"{what}: {error}") from error

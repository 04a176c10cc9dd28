"""Which programs of the node configure a NIC while the node runs, and what ends that: they would undo a move of its addresses.

Found by what they keep below /run, and by their processes; none is asked or changed. What configures a NIC at boot alone
(cloud-init, ifupdown without DHCP) is none of them: after a boot the NIC is checked again.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.netlink.netns import is_own
from userspace_cni.host.node_net.nics import Nic

_NETWORK_MANAGER: Final = "/run/NetworkManager/devices"
_NETWORKD: Final = "/run/systemd/netif/links"
_IDLE: Final = ("unmanaged", "linger")
_DHCP_CLIENTS: Final = ("dhclient", "dhcpcd", "udhcpc", "dhcpcanon")
_SERVING_ALL: Final = ("dhclient", "dhcpcd")
"""Those that serve every NIC when they are given none."""
_WITH_VALUE: Final = frozenset({"-p", "-pf", "-lf", "-cf", "-sf", "-e", "-s", "-g", "-C", "-B", "-I", "-D", "-F", "-V"})
"""Options of dhclient(8) whose value is the next word."""
_BYTES_MAX = 64 << 10
_SAID_MAX: Final = 200


@dataclass(frozen=True)
class Manager:
    """A program that configures a NIC. `what_to_do`: how it is told to leave the NIC alone."""

    name: str
    what_to_do: str


def managers_of(nics: Iterable[Nic], root: HostRoot = HERE, switch_netns: str = "") -> dict[str, tuple[Manager, ...]]:
    """The programs that configure each of the NICs now, by the NIC's name; one look at the processes serves all.

    In another network namespace than the host's there are none of them. Raises Unavailable where what one keeps, or how one was
    started, cannot be read: a NIC whose addresses move away from under a program gets them back from it.
    """
    nics = tuple(nics)
    if not nics or (switch_netns and not is_own(switch_netns, root)):
        return {nic.name: () for nic in nics}
    clients = tuple(_dhcp_clients())
    return {
        nic.name: (*_of_network_manager(nic, root), *_of_networkd(nic, root), *_of_dhcp_clients(nic, clients)) for nic in nics
    }


def _of_network_manager(nic: Nic, root: HostRoot) -> Iterator[Manager]:
    state = _read(f"{_NETWORK_MANAGER}/{nic.index}", root)
    if state.get("device", "managed", fallback="false").lower() not in ("true", "1", "yes", "full"):
        return
    drop_in = f"[device-{nic.name}] match-device=interface-name:{nic.name} managed=0"
    yield Manager(
        "NetworkManager",
        f"'nmcli device set {nic.name} managed no' leaves it alone until the next boot; for good: {drop_in} in "
        "/etc/NetworkManager/conf.d",
    )


def _of_networkd(nic: Nic, root: HostRoot) -> Iterator[Manager]:
    state = _read(f"{_NETWORKD}/{nic.index}", root).get("link", "ADMIN_STATE", fallback=_IDLE[0])
    if state in _IDLE:
        return
    yield Manager(
        "systemd-networkd",
        f"Unmanaged=yes below [Link] in a .network file that matches {nic.name}, ManageForeignRoutes=no and "
        "ManageForeignRoutingPolicyRules=no in networkd.conf, and networkctl reload; the addresses then have to be set at boot "
        "by something else",
    )


def _dhcp_clients() -> Iterator[tuple[str, int, list[str]]]:
    """Name, process and command line of each client. Of no other process the command line is read."""
    import psutil

    for process in psutil.process_iter(["name"]):
        known = next((each for each in _DHCP_CLIENTS if (process.info["name"] or "").startswith(each)), "")
        if not known:
            continue
        with suppress(psutil.NoSuchProcess):
            try:
                yield known, process.pid, process.cmdline()
            except psutil.AccessDenied as error:
                raise _unknown(f"/proc/{process.pid}/cmdline of {known}", "permission denied") from error


def _of_dhcp_clients(nic: Nic, clients: Iterable[tuple[str, int, list[str]]]) -> Iterator[Manager]:
    """A client that names the NIC, and one of dhcpcd or dhclient that names none: it serves all."""
    for known, pid, said in clients:
        if nic.name in said or (known in _SERVING_ALL and not _names_a_link(said[1:])):
            yield Manager(known, f"end process {pid} ({' '.join(said)}), and give {nic.name} static addresses")


def _names_a_link(words: list[str]) -> bool:
    """Whether a word is neither an option nor an option's value (-pf /run/dhclient.pid)."""
    return any(
        not word.startswith("-") and not (before.startswith("-") and before in _WITH_VALUE)
        for before, word in zip(["", *words], words, strict=False)
    )


def _read(path: str, root: HostRoot) -> configparser.ConfigParser:
    """A file of settings in sections, [link] where it names none; empty when it is not there. Raises Unavailable."""
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        with open(root.path(path), encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a path of another root
            text = file.read(_BYTES_MAX)
        parsed.read_string(text if text.lstrip("# \n").startswith("[") else f"[link]\n{text}")
    except (FileNotFoundError, NotADirectoryError):
        return parsed
    except (OSError, configparser.Error) as error:
        raise _unknown(path, str(error)) from error
    return parsed


def _unknown(path: str, problem: str) -> Unavailable:
    said = " ".join(problem.split())[:_SAID_MAX]
    return Unavailable(f"{path}: {said}: whether a program configures the NIC cannot be known", "look at that file")

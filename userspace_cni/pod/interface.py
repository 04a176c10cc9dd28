"""The facts of one interface that an application needs, read from an entry and its directory.

Entries come from three writers (this project, the former plugin, people): every field is checked before it is used. Must never
open a file or a socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .document import DocumentError, Entry


@dataclass(frozen=True)
class Interface:
    """A vhost-user interface as the container sees it.

    `path` is the socket's path in the container; `mode` "server" when the application makes it, "client" when the switch did.
    `mtu`, `queues` and `queue_size` are None where the entry has none. `ips` are the result's own, with prefix length.
    """

    ifname: str
    network: str
    container_id: str
    path: str
    mode: str
    mac: str
    mtu: int | None
    queues: int | None
    queue_size: int | None
    ips: list[Entry]

    def facts(self) -> Entry:
        """The facts as a JSON object; those that are not known are left out."""
        names = {"containerId": self.container_id, "queues": self.queues, "queueSize": self.queue_size, "mtu": self.mtu}
        known = {key: value for key, value in {**names, "mac": self.mac}.items() if value}
        return {
            "ifname": self.ifname,
            "network": self.network,
            "mode": self.mode,
            "path": self.path,
            **known,
            "ips": [ip["address"] for ip in self.ips],
            "gateways": [ip["gateway"] for ip in self.ips if ip.get("gateway")],
        }


def interfaces(entries: Iterable[Entry], mapped_dir: str) -> list[Interface]:
    """Read the vhost-user interfaces among `entries`, in their order; entries of another kind (memif) are skipped."""
    return [_interface(entry, mapped_dir) for entry in entries if _is_vhost(entry)]


def _is_vhost(entry: Entry) -> bool:
    config = _block(entry, "config")
    return config.get("iftype") == "vhostuser" or (not config.get("iftype") and bool(_block(config, "vhost")))


def _interface(entry: Entry, mapped_dir: str) -> Interface:
    ifname = entry["ifName"]
    vhost = _block(_block(entry, "config"), "vhost")
    mode, socketfile = vhost.get("mode"), vhost.get("socketfile")
    if mode not in ("server", "client"):
        raise DocumentError(f"interface {ifname}: vhost.mode is neither server nor client")
    if not isinstance(socketfile, str) or any(part in ("", ".", "..") for part in socketfile.split("/")):
        raise DocumentError(f"interface {ifname}: vhost.socketfile is no name below the mapped directory")
    result = _block(entry, "ipResult")
    link = _link(result, ifname)
    network = entry.get("name")
    return Interface(
        ifname=ifname,
        network=network if isinstance(network, str) else "",
        container_id=entry["containerId"],
        path=mapped_dir.rstrip("/") + "/" + socketfile,
        mode=mode,
        mac=_text(link, "mac"),
        mtu=_count(link, "mtu", ifname),
        queues=_count(vhost, "queues", ifname),
        queue_size=_count(vhost, "queueSize", ifname),
        ips=[ip for ip in _objects(result, "ips") if _text(ip, "address")],
    )


def _link(result: Mapping[str, Any], ifname: str) -> Mapping[str, Any]:
    links = _objects(result, "interfaces")
    named = [link for link in links if link.get("name") == ifname]
    return (named or links or [{}])[0]


def _block(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _objects(parent: Mapping[str, Any], key: str) -> list[Entry]:
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(parent: Mapping[str, Any], key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""


def _count(parent: Mapping[str, Any], key: str, ifname: str) -> int | None:
    value = parent.get(key)
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DocumentError(f"interface {ifname}: {key} is not a number of them")
    return value

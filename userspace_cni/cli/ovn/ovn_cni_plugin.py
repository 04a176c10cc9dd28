"""The plugin under the name `ovn_cni`, and the runtimes' network of that type, as `minion-init` put them in place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.node.install import InstallError, install_shim, place_file, require_ours
from userspace_cni.cli.ovn.opened_databases import read_host_file
from userspace_cni.cli.site import CommandRefused, Site
from userspace_cni.cni.former_network import MTU, TYPE
from userspace_cni.ovn.former_settings import FORMER_FILE, FormerPlaces, read_places
from userspace_cni.ovn.topology import Subnet

NETWORK_FILE: Final = "10-net.conf"
_NETWORK: Final = "net"


@dataclass(frozen=True)
class OvnCniPlugin:
    """Both, at the places of the settings file of then."""

    site: Site
    places: FormerPlaces

    @classmethod
    def of(cls, site: Site) -> OvnCniPlugin:
        """Raises CommandRefused, InvalidConfig."""
        return cls(site, read_places(read_host_file(site, FORMER_FILE)))

    def judge(self) -> None:
        """Raise CommandRefused where the plugin cannot be put in place: pods of another program may need what is there."""
        try:
            require_ours(self._bin_dir, (TYPE,))
        except InstallError as error:
            raise CommandRefused(f"{error}; then remove it", FOUND) from error

    def put(self, subnets: tuple[Subnet, ...]) -> bool:
        """Put the plugin there, and the network unless there is one; says each that was put, and whether any was.

        Raises CommandRefused.
        """
        path, plugin = self._network_file, self._bin_dir / TYPE
        former, put = _read(plugin), []
        try:
            install_shim(str(self._bin_dir), (TYPE,))
            put += [plugin] if _read(plugin) != former else []
            if path.is_symlink() or path.exists():
                view.note(f"{path} is there and stays")
            else:
                place_file(path, self._network(subnets), 0o644)
                put.append(path)
        except InstallError as error:
            raise CommandRefused(str(error), FOUND) from error
        for each in put:
            view.say(f"+ {each}")
        return bool(put)

    @property
    def _bin_dir(self) -> Path:
        return Path(self.site.map_path(self.places.bin_dir))

    @property
    def _network_file(self) -> Path:
        return Path(self.site.map_path(self.places.conf_dir or self.site.settings.cni_conf_dir)) / NETWORK_FILE

    def _network(self, subnets: tuple[Subnet, ...]) -> bytes:
        """The file of then, with a version, which runtimes of today want, and with the MTU of the tools' settings."""
        network = {
            "cniVersion": "0.4.0",
            "name": _NETWORK,
            "type": TYPE,
            "bridge": self.site.settings.ovn_bridge,
            "isGateway": "true",
            "ipMasq": "false",
            "mtu": self.places.mtu or MTU,
            "ipam": {"type": "host-local", "subnet": str(subnets[0])},
        }
        return (json.dumps(network, indent=2) + "\n").encode()


def _read(path: Path) -> bytes | None:
    """What the file has; None where there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return None

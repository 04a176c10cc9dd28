"""OVN's databases as this node reaches them, opened when first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from userspace_cni.base.settings import Settings
from userspace_cni.ovn.former_settings import add_former
from userspace_cni.ovn.northbound import NorthboundClient, northbound_client
from userspace_cni.ovn.remotes import northbound_remote, reached_files, reached_remote, southbound_remote, tls_files
from userspace_cni.ovn.southbound import SouthboundClient, southbound_client
from userspace_cni.switch.chassis import switch_ids
from userspace_cni.switch.ovsdb.switch_ids import write_ids

if TYPE_CHECKING:
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.ovsdb.database import Tls
    from userspace_cni.switch.ovsdb.switch_database import SwitchClient


class OvnDatabases:
    """The clients of both databases, and the node's part in OVN: external_ids of its switch, asked for where settings do not say.

    `deadline`: for what is asked of the switch. `map_path`: a path of the host as this process reaches it; settings, remotes and
    messages have the host's own. `settings` are those in force.
    """

    def __init__(
        self, settings: Settings, switch: SwitchClient, deadline: Deadline, map_path: Callable[[str], str] = str
    ) -> None:
        self.settings = settings
        self._map_path = map_path
        self._switch = switch
        self._deadline = deadline
        self._opened: list[NorthboundClient | SouthboundClient] = []

    @cached_property
    def ids(self) -> Mapping[str, str]:
        """The switch's external_ids. Raises Unavailable."""
        return switch_ids(self._switch, self._deadline)

    def read_ids(self, deadline: Deadline) -> Mapping[str, str]:
        """As `ids`, as they are now: another command may have written some. Raises Unavailable."""
        self.ids = switch_ids(self._switch, deadline)
        return self.ids

    def read_former(self, text: str) -> None:
        """Take what the file of ovn-kubernetes' first tools says where settings and switch say nothing. Raises InvalidConfig."""
        said = self.ids.get("ovn-nb", "") if not self.settings.ovn_nb else ""
        self.settings = add_former(self.settings, text, said, is_there=lambda path: Path(self._map_path(path)).exists())

    @cached_property
    def northbound_remote(self) -> str:
        """Where the northbound database is. Raises Unavailable, InvalidConfig."""
        return northbound_remote(self.settings, {} if self.settings.ovn_nb else self.ids)

    @cached_property
    def southbound_remote(self) -> str:
        """Where the southbound database is. Raises Unavailable, InvalidConfig."""
        return southbound_remote(self.settings, {} if self.settings.ovn_sb else self.ids)

    @cached_property
    def northbound(self) -> NorthboundClient:
        """Raises Unavailable, InvalidConfig where it is not known how to reach it; nothing is connected yet."""
        remote = self.northbound_remote
        client = northbound_client(self._reached(remote), tls=self._files(remote))
        self._opened.append(client)
        return client

    @cached_property
    def southbound(self) -> SouthboundClient:
        """As `northbound`."""
        remote = self.southbound_remote
        client = southbound_client(self._reached(remote), tls=self._files(remote))
        self._opened.append(client)
        return client

    def write_ids(self, ids: Mapping[str, str], deadline: Deadline) -> None:
        """Set external_ids of the switch; an empty value removes a key. Raises Unavailable, SwitchRefused."""
        write_ids(self._switch, ids, deadline)

    def close(self) -> None:
        for each in self._opened:
            each.close()

    def _reached(self, remote: str) -> str:
        return reached_remote(remote, self._map_path)

    def _files(self, remote: str) -> Tls | None:
        return reached_files(tls_files(self.settings, remote), self._map_path)

"""The names at which OVS makes sockets: the switch's answer decides whether a file of the node is removed, or a name given up.

OVS 3.1 does not unregister a socket that it failed to bind, DPDK 22.11 has closed its descriptor and keeps the number. Each
later attempt in that process at that path, which comes with any change of the configuration, binds whatever has that number by
then, and closes it when that fails: the tap of a bridge, another port's socket. So under a daemon that has failed the dead socket
stays, and the port gets another name, at which that daemon has not failed. The name that it had is spent as long as that daemon
lives, also for the next ADD of the same container: a file in the run directory says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.steps import OvsPort, PlacedSocket, PortRef, Step, port_name
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused, StepFailed, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.pod.socket_path import SUN_PATH_MAX

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.node.local import LocalNode

_LOOK_S: Final = 5.0
_NUMBERED: Final = "."
"""Between a port's usual name and the milliseconds of the boot, in the name that it has instead."""


def free_name(name: str, node: LocalNode, deadline: Deadline) -> None:
    """Remove a dead socket at the path where OVS makes the socket of a port of that name."""
    free_source(f"{node.sockdir(deadline)}/{name}", node, deadline)


def free_source(path: str, node: LocalNode, deadline: Deadline) -> bool:
    """Remove a dead socket at `path`, where OVS makes the port's; whether there was one. `path` ends in the port's name.

    Not under a daemon that has failed to bind there: as long as the dead socket is there its attempts fail; without it,
    ovs-vswitchd hangs.
    """
    from userspace_cni.host import placement

    if not placement.is_source_dead(path, node.root) or node.ports.has_failed(_name_of(path), deadline):
        return False
    return placement.free_source(path, node.root)


class SwitchSockets:
    """The sockets that OVS makes for recorded attachments of this node."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node

    def free_all(self) -> int:
        """Remove the dead sockets of a killed ovs-vswitchd, on which the next one could not bind; how many. Never fails."""
        deadline, freed = Deadline.after(_LOOK_S), 0
        try:
            for record in self._node.journal.records():
                if record.socket and record.socket.switch_path:
                    freed += free_source(record.socket.switch_path, self._node, deadline)
        except UserspaceError as error:
            say("warning", "sockets of the dead ovs-vswitchd may keep the next one from binding", error=error)
        return freed

    def free(self, name: str, deadline: Deadline) -> None:
        """Remove a dead socket where OVS made that of a port of this name, which is gone. Raises UserspaceError."""
        free_name(name, self._node, deadline)

    def is_spoiled(self, record: Record) -> bool:
        """Whether a dead socket was where OVS had to make this attachment's, so that the daemon has failed.

        Raises UserspaceError.
        """
        from userspace_cni.host import placement

        source = record.socket.switch_path if record.socket else ""
        if not source or not placement.is_source_dead(source, self._node.root):
            return False
        return self._node.ports.has_failed(_name_of(source), Deadline.after(_LOOK_S))

    def renamed(self, record: Record) -> tuple[Step, ...]:
        """The attachment's steps with another name of port and socket at the switch, and a reference to the port as it was.

        Raises StepFailed where a longer name would be too long for a socket.
        """
        port, socket = record.port, record.socket
        if port is None or not isinstance(socket, PlacedSocket):
            return record.steps
        name = self._new_name(port_name(record.container_id, record.ifname))
        source = f"{socket.source.rpartition('/')[0]}/{name}"
        if len(source.encode("utf-8", "surrogateescape")) > SUN_PATH_MAX:
            raise StepFailed(f"port {port.name}: its socket {source} would have more than {SUN_PATH_MAX} bytes", "restart OVS")
        steps: list[Step] = []
        for step in record.steps:
            if step is port:
                steps += [replace(port, name=name), port.ref]
            else:
                steps.append(replace(socket, source=source) if step is socket else step)
        return tuple(steps)

    def name_of(self, container_id: str, ifname: str) -> str:
        """The name of the port that an attachment is to have now: another one than usual while that is spent."""
        usual = port_name(container_id, ifname)
        try:
            spent_under = Path(self._spent, usual).read_text(encoding="utf-8")
        except OSError:
            return usual
        return self._new_name(usual) if spent_under == self._daemon() else usual

    def _new_name(self, usual: str) -> str:
        """A name that no port has had since the node has booted."""
        return f"{usual}{_NUMBERED}{self._node.boottime_ns() // 10**6}"

    @property
    def _spent(self) -> str:
        return self._node.root.path(f"{self._node.settings.run_dir}/spent-names")

    def _daemon(self) -> str:
        """Which daemon lives, or lived last."""
        found = self._node.ports.daemon.peek()
        return f"{found.pid} {found.born}"

    def spend(self, names: Iterable[str]) -> None:
        """Write down that the living daemon has failed at these names; what was so under others is forgotten.

        Raises DirectoryRefused.
        """
        daemon = self._daemon()
        try:
            Path(self._spent).mkdir(mode=0o700, exist_ok=True)
            for each in Path(self._spent).iterdir():
                if each.read_text(encoding="utf-8") != daemon:
                    each.unlink()
            for name in names:
                Path(self._spent, name).write_text(daemon, encoding="utf-8")
        except OSError as error:
            raise DirectoryRefused(f"{self._spent}: {error.strerror}", "setting run_dir") from error

    def replace(self, pairs: Sequence[tuple[PortRef, OvsPort]], deadline: Deadline) -> None:
        """Put each second port in the place of the first, all in one transaction. Raises UserspaceError."""
        from userspace_cni.dataplane.replaced_ports import replace as replace_ports

        self.spend(old.name for old, _ in pairs)
        replace_ports(self._node.ports.client, pairs, self._node.journal.identity(), deadline)


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]

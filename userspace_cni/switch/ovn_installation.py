"""Waits until OVN has installed a port of the switch, and says what was missing where it has not.

ovn-controller writes it into the port's own row of OVSDB when the flows of its logical port are in ovs-vswitchd: so it is an
event like all others of that row, and no other database is asked. No row says why it is not written: after the wait the chassis'
own settings are read, and ovn-controller is asked. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.steps import OWNER, LogicalPort, OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.findings import Finding
from userspace_cni.base.logical_ports import is_further_name
from userspace_cni.switch.chassis import SYSTEM_ID, switch_ids
from userspace_cni.switch.ovn_controller import ControllerWord, ask_controller
from userspace_cni.switch.ovsdb.rows.bridge_row import missing_bridge_of_ovn
from userspace_cni.switch.ovsdb.rows.logical_ids import IFACE_ID, is_installed
from userspace_cni.switch.vswitchd import Daemon

if TYPE_CHECKING:
    from userspace_cni.ovsdb.replica import Watch
    from userspace_cni.switch.ovsdb.switch_database import SwitchClient, SwitchSession

_SPARE_S: Final = 2.0
"""What is left of the deadline for finding out what was missing."""
_PATIENCE_S: Final = 1.0
"""How long it waits before it asks whether ovs-vswitchd lives: OVN takes 25 to 80 ms."""
WAITING_MAX: Final = 128
"""How many may wait longer than that at the same time: each has a thread of the agent, whose others are for other networks' pods
while OVN is down."""
_USUAL_BRIDGE: Final = "br-int"
_BRIDGE: Final = "ovn-bridge"
_REMOTE: Final = "ovn-remote"
_HOSTNAME: Final = "hostname"
_CONNECTED: Final = "connected"
_RESTART: Final = (
    "`systemctl restart ovn-controller` (Debian: ovn-host); the end of its log, ovn-controller.log, says what happened"
)
_LOOK: Final = "ovn-nbctl list Logical_Switch_Port {}; ovn-sbctl find Port_Binding logical_port={}; the log of ovn-controller"


@dataclass(frozen=True)
class ChassisLook:
    """What this node shows of OVN after a logical port was not installed in time.

    `bridge`: where the port is, None where that bridge is not there; `ids`: Open_vSwitch.external_ids; `others`: the other ports
    that have the same logical port; `word`: ovn-controller's.
    """

    bridge: str
    is_there: bool = True
    ids: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    word: ControllerWord = field(default_factory=ControllerWord)


def find_missing(logical: LogicalPort, look: ChassisLook) -> Iterator[Finding]:
    """What the logical port lacks on this node, as far as the node shows it. Pure."""

    def found(name: str, message: str, remedy: str) -> Finding:
        return Finding(name, "error", logical.name, message, remedy)

    chassis = look.ids.get(SYSTEM_ID, "")
    used = look.ids.get(f"{_BRIDGE}-{chassis}") or look.ids.get(_BRIDGE) or _USUAL_BRIDGE
    if not look.is_there:
        yield found("ovn-bridge-missing", missing_bridge_of_ovn(look.bridge)[0], _RESTART)
    if used != look.bridge:
        message = f"ovn-controller's integration bridge is {used} (external_ids:{_BRIDGE} of Open_vSwitch), not {look.bridge}"
        yield found("ovn-bridge-other", message, f"the setting ovn_bridge has to say {used}; or `userspace-cni ovn init-node`")
    for key in (SYSTEM_ID, _REMOTE):
        if not look.ids.get(key):
            message = f"external_ids:{key} of Open_vSwitch is not set: the node is no chassis of OVN"
            yield found("ovn-chassis-unset", message, "`userspace-cni ovn init-node`")
    if look.others:
        message = f"{', '.join(look.others)} on this node has the logical port, too, and only one can: its sandbox has no DEL yet"
        yield found("logical-port-twice", message, "`userspace-cni gc` removes what is left of ended sandboxes")
    if not look.word.connection:
        yield found("ovn-controller-dead", f"ovn-controller does not answer: {look.word.silence}", _RESTART)
    elif look.word.connection != _CONNECTED:
        remote = look.ids.get(_REMOTE, "")
        message = f"ovn-controller says of the southbound database {remote}: {look.word.connection}"
        remedy = (
            f"see whether it is reached from here (`ovn-sbctl --db={remote} show`), and whether external_ids:{_REMOTE} of "
            "Open_vSwitch is right"
        )
        yield found("ovn-southbound-away", message, remedy)
    elif look.word.knows_port:
        message = (
            f"chassis {chassis} knows the logical port, but its options:requested-chassis names another one, or another has it"
        )
        yield found("logical-port-elsewhere", message, _LOOK.format(logical.name, logical.name))
    else:
        version = f"iface-id-ver {logical.version}" if logical.version else "no iface-id-ver, as the UID is not known"
        message = (
            f"chassis {chassis} knows no such logical port for this interface: it is not made, or its options:iface-id-ver is "
            f"another's (this port has {version})"
        )
        yield found("logical-port-unknown", message, _LOOK.format(logical.name, logical.name))


def find_first_interface(client: SwitchClient, container_id: str, deadline: Deadline) -> str:
    """The name, in its pod, of the container's interface whose logical port is called after the pod alone; "" for none.

    Raises Unavailable.
    """
    from userspace_cni.ovsdb.column_values import value_of
    from userspace_cni.ovsdb.database import with_ids

    wanted = {"owner": OWNER, "container-id": container_id}

    def look(session: SwitchSession) -> str:
        marked = (value_of(row, "external_ids") for row in session.rows("Interface"))
        found = ((ids.get("ifname", ""), ids[IFACE_ID]) for ids in marked if IFACE_ID in ids and wanted.items() <= ids.items())
        return next(iter(sorted(ifname for ifname, name in found if not is_further_name(name, ifname))), "")

    return client.read(look, with_ids(wanted), "looking for other logical ports of the container", deadline)


class LogicalPorts:
    """The logical ports of one switch. `rundir`: where ovn-controller has its control socket. Safe to use from any thread.

    `most`: how many wait for OVN at the same time, but for the first second of each.
    """

    def __init__(self, client: SwitchClient, daemon: Daemon, rundir: str, most: int = WAITING_MAX) -> None:
        self._client = client
        self._daemon = daemon
        self._rundir = rundir
        self._most = most
        self._waiting = BoundedSemaphore(most)

    def await_installed(self, session: SwitchSession, step: OvsPort, deadline: Deadline) -> None:
        """Wait until ovn-controller says of the step's row that it is installed; at once where the step does not wait for it.

        The row was written, and open, before. Raises Unavailable, which says what was missing.
        """
        from userspace_cni.ovsdb.column_values import value_of

        logical = step.logical
        if logical is None or not logical.waits:
            return

        def look() -> bool | None:
            row = session.row("Interface", step.name)
            return False if row is None else is_installed(logical, value_of(row, "external_ids")) or None

        watch = session.watch("Interface", step.name, look)
        left = deadline.remaining()
        end = deadline.within(max(left - _SPARE_S, left / 2))
        found = watch.wait(end.within(_PATIENCE_S).remaining())
        if found is None and end.remaining():
            if not self._waiting.acquire(blocking=False):
                watch.forget()
                raise Unavailable(
                    f"OVN has not installed logical port {logical.name} within {_PATIENCE_S:g} s, and {self._most} other ADDs of "
                    "this node wait for OVN already",
                    "does ovn-controller run, and a controller of logical ports?",
                )
            try:
                found = self._wait_on(watch, end, deadline)
            finally:
                self._waiting.release()
        if found:
            return
        watch.forget()
        if found is False:
            raise Unavailable(f"port {step.name}: another process deleted its rows", f"ovs-vsctl list-ports {step.bridge}")
        missing = "; ".join(each.message for each in find_missing(logical, self._look(step, logical, deadline)))
        raise Unavailable(
            f"OVN has not installed logical port {logical.name} in time: {missing}", _LOOK.format(logical.name, logical.name)
        )

    def find_faults(self, step: OvsPort, deadline: Deadline) -> tuple[tuple[str, str], tuple[Finding, ...]]:
        """Name and hostname of this chassis, and what the step's logical port lacks here now. Raises Unavailable."""
        if step.logical is None:
            return ("", ""), ()
        look = self._look(step, step.logical, deadline)
        return (look.ids.get(SYSTEM_ID, ""), look.ids.get(_HOSTNAME, "")), tuple(find_missing(step.logical, look))

    def _wait_on(self, watch: Watch[bool], end: Deadline, deadline: Deadline) -> bool | None:
        """Wait until `end`. Raises Unavailable when ovs-vswitchd is dead."""
        while True:
            liveness = self._daemon.ask_shared(deadline)
            if liveness.state == "dead":
                watch.forget()
                raise Unavailable(f"ovs-vswitchd is dead: {liveness.reason}", "see its log, and restart it")
            found = watch.wait(end.within(_PATIENCE_S).remaining())
            if found is not None or not end.remaining():
                return found

    def _look(self, step: OvsPort, logical: LogicalPort, deadline: Deadline) -> ChassisLook:
        """What the node shows now; what cannot be read is left out."""
        from userspace_cni.ovsdb.column_values import value_of
        from userspace_cni.ovsdb.database import named, with_ids

        wanted = {IFACE_ID: logical.name}

        def read(session: SwitchSession) -> tuple[bool, tuple[str, ...]]:
            rows = [(value_of(row, "name"), value_of(row, "external_ids")) for row in session.rows("Interface")]
            others = sorted(f"port {name}" for name, ids in rows if name != step.name and ids.get(IFACE_ID) == logical.name)
            return session.row("Bridge", step.bridge) is not None, tuple(others)

        needs = named(step.name, step.bridge) | with_ids(wanted)
        is_there, others = self._client.read(read, needs, "looking for ports of the same logical port", deadline)
        ids = switch_ids(self._client, deadline)
        return ChassisLook(step.bridge, is_there, ids, others, ask_controller(self._rundir, logical.name, deadline))

"""Opens the two endpoints between which `ping` and `load` send frames, and puts everything back.

The endpoints are two attachments without their applications, or two temporary ports. Attaching to a port of type dpdkvhostuser
cuts off a connected application, so each port is checked immediately before it is touched, and refused unless the switch says
that none is connected. A verb must never wait: when DEL removes a port during a measurement, the measurement ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from userspace_cni.attachment.listing import SwitchPort, name_of
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import BorrowedName, Socket
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.settings import Settings
from userspace_cni.linux.unix_sockets import connections_anywhere
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.endpoints import HEADER_BYTES, MTU, Endpoint, Pair, Unusable, endpoint_of, require_path
from userspace_cni.probe.remote import Remote

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node
    from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions
    from userspace_cni.fastpath.vhost.socket_paths import SocketAccess
    from userspace_cni.node.probes import ProbePort, ProbePorts
    from userspace_cni.probe.borrowed_socket import BorrowedSocket

ATTACH_S: Final = 30.0
"""The first port after a start of ovs-vswitchd waits for its memory: 7 s were measured, and 15 s on a busy machine."""
SOCKET_MODE: Final = 0o660
SWITCH_S: Final = 3.0
"""Seconds that connecting to OVSDB may take."""
LIFE_S: Final = 3.0
"""Seconds for which a silent ovs-vswitchd is asked again: on a busy machine it is silent for a moment."""
REST_S: Final = 0.5
"""Seconds to wait for an attachment's lock: another ping or load has it for a moment, a call of the runtime for longer."""
Tell = Callable[[str], None]


class Frames(NamedTuple):
    """What is sent: frames of at most `size` bytes; `single`: one at a time, which goes faster over split rings."""

    size: int
    single: bool = False


class ProbeSite(Protocol):
    """The node and its settings, as a command has them."""

    @property
    def settings(self) -> Settings: ...

    @property
    def node(self) -> Node:
        """The node, opened when first needed."""
        ...

    def map_path(self, path: str) -> str:
        """A path of the settings as this process reaches it."""
        ...

    def probe_ports(self, purpose: str) -> ProbePorts: ...


# -- attachments ----------------------------------------------------------------------------------------------------------


@contextmanager
def of_attachments(
    site: ProbeSite, records: Sequence[Record], frames: Frames, tell: Tell, tidy: Callable[[], None]
) -> Iterator[Pair]:
    """Open the endpoints of two attachments, for such frames; everything is put back at the end.

    `tidy` removes what killed runs left: that may be a socket at one of these ports, or a probe on their bridge. Raises Unusable,
    BadRequest, Unavailable, FastPathError.
    """
    endpoints = (endpoint_of(records[0]), endpoint_of(records[1]))
    require_path(endpoints, frames.size)
    for record in records:
        _require_rest(site, record)
    _require_idle(site, endpoints)
    tidy()
    options = _options(endpoints, frames)
    with ExitStack() as stack:
        borrowed = [stack.enter_context(_borrowed(site, record, options)) for record in records]
        _listen(site, list(zip(endpoints, borrowed, strict=True)), tell)
        fronts = []
        for endpoint, socket in zip(endpoints, borrowed, strict=True):
            tell(f"attaching to {endpoint.name}")
            if socket.place is None:
                _require_idle(site, [endpoint])
            fronts.append(_attached(endpoint, socket))
        yield Pair(endpoints, (fronts[0], fronts[1]), Remote.of(site.settings, site.map_path))


def _listen(site: ProbeSite, borrowed: Sequence[tuple[Endpoint, BorrowedSocket]], tell: Tell) -> None:
    """Listen where OVS connects to the application, until it has connected. The sockets' names are free again then."""
    from userspace_cni.fastpath.fastpath_errors import SocketRefused

    listening = [(endpoint, socket) for endpoint, socket in borrowed if socket.place]
    with ExitStack() as names:
        if listening:
            names.enter_context(_noted(site, [socket.place for _, socket in listening if socket.place]))
        for endpoint, socket in listening:
            try:
                names.enter_context(socket.listen())
            except SocketRefused as error:
                raise Unusable(f"{endpoint.name} cannot be used: {error}") from error
        for endpoint, socket in listening:
            tell(f"waiting for the switch at {endpoint.name}: it tries to connect once a second")
            socket.await_switch()


def _attached(endpoint: Endpoint, socket: BorrowedSocket) -> FrontEnd:
    from userspace_cni.fastpath.fastpath_errors import SocketRefused

    try:
        return socket.attach(ATTACH_S)
    except SocketRefused as error:
        hint = "" if socket.place else "; where ovs-vswitchd was restarted, userspace-cni gc puts its new socket in place"
        raise Unusable(f"{endpoint.name} cannot be used: {error}{hint}") from error


@contextmanager
def _noted(site: ProbeSite, places: Sequence[Socket]) -> Iterator[None]:
    """Within this block a record says where our sockets are, for the case that this process is killed."""
    from userspace_cni.attachment.runs import Run

    with Run("measurement", site.node.store, site.node.driver) as run:
        run.add([BorrowedName(each.directory, each.trusted, each.name) for each in places], Deadline.after(SWITCH_S))
        yield


def _borrowed(site: ProbeSite, record: Record, options: FrontEndOptions) -> BorrowedSocket:
    from userspace_cni.probe.borrowed_socket import BorrowedSocket

    if record.socket is None:
        raise Unusable(f"{name_of(record)}: its record names no socket; userspace-cni show tells its steps")
    return BorrowedSocket(record.socket, site.map_path(record.socket.trusted).rstrip("/"), options, access_for_switch(site))


def access_for_switch(site: ProbeSite) -> SocketAccess:
    """Owner and mode for a socket to which OVS connects: OVS runs as the owner of its run directory."""
    from userspace_cni.fastpath.vhost.socket_paths import SocketAccess

    rundir = site.map_path(site.settings.ovs_rundir)
    try:
        facts = Path(rundir).stat()
    except OSError as error:
        raise Unavailable(f"directory {rundir}: {error.strerror}; setting ovs_rundir (OVS_RUNDIR) names it") from error
    return SocketAccess(SOCKET_MODE, facts.st_uid, facts.st_gid)


def _require_rest(site: ProbeSite, record: Record) -> None:
    """Raise Unusable for an attachment on which a verb works now, or has worked since its record was read."""
    try:
        with site.node.store.journal.turn_lock(record.key, Deadline.after(REST_S)):
            current = site.node.store.journal.read_key(record.key)
    except Unavailable as error:
        raise Unusable(f"{name_of(record)}: a call of the runtime works on it now; try again") from error
    if current != record:
        raise Unusable(f"{name_of(record)} was changed a moment ago; try again")


def _require_life(site: ProbeSite) -> None:
    """Raise Unavailable for a switch that does not answer: it may not have reported an application's connection yet.

    The state of a switch behind a database over TCP is not known here: the later checks must suffice.
    """
    deadline = Deadline.after(LIFE_S)
    while (liveness := site.node.switch.ports.watch_liveness()).state == "silent" and deadline.remaining():
        pass
    if liveness.state in ("dead", "silent"):
        raise Unavailable(f"ovs-vswitchd is {liveness.state}: {liveness.reason}; see its log")


def _require_idle(site: ProbeSite, endpoints: Sequence[Endpoint]) -> None:
    """Raise Unusable for ports that are in use or cannot be used, Unavailable when the switch cannot be asked."""
    try:
        site.node.switch.ports.connect(Deadline.after(SWITCH_S))
    except UserspaceError as error:
        raise Unavailable(f"the switch cannot be asked, and may have ports in use: {error}") from error
    _require_life(site)
    ports: Mapping[str, SwitchPort] = {port.name: port for port in site.node.switch.ports.list_ports()}
    for endpoint in endpoints:
        port = ports.get(endpoint.port)
        if port is None:
            raise Unusable(f"{endpoint.name}: the switch has no port {endpoint.port}; userspace-cni gc makes it again")
        if port.error:
            raise Unusable(f"{endpoint.name}: the switch says of port {endpoint.port}: {port.error}")
        if port.bridge != endpoint.bridge:
            raise Unusable(f"{endpoint.name}: port {endpoint.port} is on bridge {port.bridge}, and was made on {endpoint.bridge}")
        is_up = port.link_state == "up" or port.status.get("status") == "connected"
        if is_up or (port.interface_type == "dpdkvhostuser" and connections_anywhere(endpoint.port)):
            raise Unusable(
                f"{endpoint.name} is in use: its pod is connected to port {endpoint.port}, or another ping or load is. "
                "Attaching would cut that off. "
                "Stop the pod's application, or use temporary ports on the same bridge: "
                f"--bridge {endpoint.bridge} without names"
            )


# -- temporary ports ------------------------------------------------------------------------------------------------------


@contextmanager
def temporary(
    site: ProbeSite, bridge: str | None, frames: Frames, tell: Tell, removed: Tell, ending: EndingSignals
) -> Iterator[Pair]:
    """Open two probes on `bridge` as endpoints, None for a bridge made for them; they are removed at the end.

    `removed` is called with each thing that killed runs had left. Raises BadRequest, Unavailable, FastPathError, Ended.
    """
    from userspace_cni.fastpath.vhost.front_end import FrontEndListener

    with site.probe_ports("measurement") as ports:
        ending.listen()  # `ports` installed its own handler; it handles signals again when it cleans up
        ports.connect()
        if bridge is not None:
            ports.require_bridge(bridge)
        for leftover in ports.adopt():
            removed(leftover)
        tell(f"making two ports on bridge {bridge}" if bridge else "making a bridge with two ports")
        first = ports.reserve(bridge)
        second = ports.reserve(first.bridge)
        mtu = max(MTU, frames.size - HEADER_BYTES)
        endpoints = (_probe_endpoint(first, "port A", mtu), _probe_endpoint(second, "port B", mtu))
        options = _options(endpoints, frames)
        access = access_for_switch(site)
        with ExitStack() as stack:
            listeners = [stack.enter_context(FrontEndListener(port.socket, options, access)) for port in (first, second)]
            for port in (first, second):
                ports.plug(port, mtu=mtu if mtu > MTU else None)
            tell("attaching to both")
            fronts = [stack.enter_context(listener.accept(ATTACH_S)) for listener in listeners]
            ports.join(first, second)
            yield Pair(endpoints, (fronts[0], fronts[1]), Remote.of(site.settings, site.map_path))


def _probe_endpoint(port: ProbePort, name: str, mtu: int) -> Endpoint:
    return Endpoint(name, port.name, port.bridge, port.mac, mtu)


def _options(endpoints: Sequence[Endpoint], frames: Frames) -> FrontEndOptions:
    """Options with buffers for the longest frame that the switch may send, and a VLAN's tag."""
    from userspace_cni.fastpath.vhost.front_end import FrontEndOptions

    room = max(endpoint.mtu for endpoint in endpoints) + HEADER_BYTES + 4
    return FrontEndOptions(room=room, packed=False if frames.single else None)

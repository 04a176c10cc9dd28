"""The two ends between which `ping` and `load` send frames: ports that nobody uses, as somebody's application would use them.

Either two attachments whose applications are not there, or two temporary ports. Attaching to a port of type dpdkvhostuser takes
it from whoever is connected, so a port is looked at immediately before it is touched, and refused unless the switch says that
nobody is there. A verb is never kept waiting: when DEL removes a port amid a measurement, that ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from userspace_cni.attachment.listing import SwitchPort, name_of, port_step
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import OvsPort, PlacedSocket, SocketFile
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.cli import view
from userspace_cni.cli.measure.remote import Remote
from userspace_cni.cli.node.attachments import summary
from userspace_cni.cli.site import FOUND, UNREACHABLE, USAGE, Refused, Site
from userspace_cni.fastpath.sys.unix_sockets import connections_anywhere
from userspace_cni.probe.ending import Ending

if TYPE_CHECKING:
    from userspace_cni.fastpath.rings.queue_pair import QueuePair
    from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndOptions
    from userspace_cni.fastpath.vhost.sockets import Access
    from userspace_cni.node.probes import ProbePort
    from userspace_cni.probe.borrowed_socket import StandIn

MTU: Final = 1500
SIZE_MIN: Final = 60
SIZE_MAX: Final = 9018
HEADER_BYTES: Final = 14
ETHERTYPE: Final = bytes.fromhex("88b5")
"""Local experimental (IEEE 802)."""
ATTACH_S: Final = 30.0
"""The first port after a start of ovs-vswitchd waits for its memory: 7 s were seen, and 15 s where others had the cores."""
SOCKET_MODE: Final = 0o660
MEET_S: Final = 3.0
LIFE_S: Final = 3.0
"""How often ovs-vswitchd is asked whether it lives: it is silent for a moment where others have the cores."""
REST_S: Final = 0.5
"""Another ping or load has a container's lock for as long as reading its record takes; a call of the runtime for longer."""
_TIDY_S: Final = 5.0
_LOOK_S: Final = 0.05
_LATE_S: Final = 0.2
MAKING: Final = "making ports and sockets of our own for a moment"
"""What a user other than root is told that he may not do."""
Tell = Callable[[str], None]


def between_ports(function: Callable[..., None]) -> Callable[..., None]:
    """What every command between two ports can be told: `names`, `bridge`, `size`, `as_json`."""
    options = (
        click.argument("names", nargs=-1, metavar="[A B]"),
        click.option(
            "--bridge",
            metavar="BRIDGE",
            help="Without A and B: two temporary ports on this bridge, not on one made for them.",
        ),
        click.option(
            "--size",
            default=64,
            show_default=True,
            type=click.IntRange(SIZE_MIN, SIZE_MAX),
            help="Bytes of a frame, without its checksum.",
        ),
        click.option("--json", "as_json", is_flag=True, help="As a JSON object."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True)
class End:
    """One end. `vlan`: the VLAN of its untagged frames, 0 for none. `mtu`: of the port, without the Ethernet header."""

    name: str
    port: str
    bridge: str
    mac: str
    mtu: int = MTU
    vlan: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "port": self.port,
            "bridge": self.bridge,
            "mac": self.mac,
            "mtu": self.mtu,
            "vlan": self.vlan,
        }


@dataclass(frozen=True)
class Pair:
    """Both ends, attached to the switch."""

    ends: tuple[End, End]
    fronts: tuple[FrontEnd, FrontEnd]
    remote: Remote

    @property
    def queues(self) -> tuple[QueuePair, QueuePair]:
        """The first pair of queues of either end."""
        return self.fronts[0].pairs[0], self.fronts[1].pairs[0]

    def frame(self, size: int, *, back: bool = False) -> bytes:
        """A frame of `size` bytes from the first to the second end, or `back`."""
        source, target = self.ends[::-1] if back else self.ends
        return (mac_bytes(target.mac) + mac_bytes(source.mac) + ETHERTYPE).ljust(size, b"\0")

    def hung_up(self) -> str:
        """That the switch has hung up on an end, and on which; "" while it has not."""
        gone = [end.name for end, front in zip(self.ends, self.fronts, strict=True) if not front.alive()]
        return f"the switch hung up on {view.joined(gone)}: the port was removed, or ovs-vswitchd ended" if gone else ""

    def cut(self, what: str) -> str:
        """What happened, and what to look at when frames do not arrive any more."""
        return (
            f"{what}: the way is cut, or an application took over a port of type dpdkvhostuser. Look at the flows "
            f"({self.remote.flows(self.ends[0].bridge)}) and the links ({self.links()})"
        )

    def links(self) -> str:
        """The command that tells whether both ports are up."""
        a, b = self.ends
        return self.remote.vsctl("get", "Interface", a.port, "link_state", "--", "get", "Interface", b.port, "link_state")


@dataclass(frozen=True)
class Wanted:
    """What the caller asked for: two names or none, then a bridge or None for a temporary one; `size` of the frames in bytes."""

    names: tuple[str, ...]
    bridge: str | None
    size: int

    def require_possible(self) -> None:
        """Refuse what can only be a mistake in the call."""
        if len(self.names) not in (0, 2):
            raise Refused("two attachments are needed, or none for two temporary ports", USAGE)
        if self.names and self.bridge is not None:
            raise Refused("--bridge is for temporary ports: two attachments are on the bridge that they are on", USAGE)


@contextmanager
def opened(site: Site, wanted: Wanted, tell: Tell, ending: Ending) -> Iterator[Pair]:
    """Both ends, with frames on their way; everything is put back at the end. Raises Refused, UserspaceError, Ended."""
    from userspace_cni.fastpath.errors import FastPathError

    wanted.require_possible()
    if not wanted.names:
        site.require_root(MAKING)
    with ExitStack() as stack:
        try:
            pair = stack.enter_context(
                _attachments(site, wanted, tell) if wanted.names else _temporary(site, wanted, tell, ending)
            )
            tell("sending the first frames")
            meet(pair, wanted.size)
        except FastPathError as error:
            raise Refused(str(error), FOUND) from error
        yield pair


@contextmanager
def refused_as(*, as_json: bool) -> Iterator[None]:
    """Where JSON is wanted, why nothing was measured is JSON on stdout too: an object with `error` alone."""
    try:
        yield
    except (Refused, UserspaceError) as error:
        if as_json:
            view.show_json({"error": str(error)})
        raise


def meet(pair: Pair, size: int) -> None:
    """Let the bridge learn where both ends are: a frame each way, the first of which goes to every port. Raises Refused."""
    missing = [end for end, arrived in zip(pair.ends, _greet(pair, size, MEET_S), strict=True) if not arrived]
    if missing:
        a, b = pair.ends
        raise Refused(
            f"no frame arrived at {view.joined([end.name for end in missing])} within {MEET_S:g} s. Look at "
            f"the VLANs ({pair.remote.vsctl('list', 'Port', a.port, b.port)}), "
            f"the flows ({pair.remote.flows(a.bridge)}), and the links ({pair.links()}). "
            f"With STP or RSTP on the bridge ({pair.remote.vsctl('list', 'Bridge', a.bridge)}) a port forwards nothing in its "
            "first 30 s",
            FOUND,
        )


def mac_bytes(mac: str) -> bytes:
    """The six bytes of `aa:bb:cc:dd:ee:ff`."""
    return bytes.fromhex(mac.replace(":", ""))


def untagged_vlan(port: OvsPort) -> int:
    """In which VLAN a frame without a tag is that enters the port, 0 for none. Raises Refused where such frames can not be used.

    ovs-vswitchd.conf.db(5), Port.vlan_mode: without one, a port with a tag is an access port, and any other a trunk.
    """
    mode = port.vlan.mode or ("access" if port.vlan.tag is not None else "trunk")
    if mode == "native-tagged":
        raise Refused(f"port {port.name} is native-tagged: it tags the frames that it sends, and ours have no tag", FOUND)
    if mode == "trunk":
        if port.vlan.trunks and 0 not in port.vlan.trunks:
            carried = view.joined(list(map(str, port.vlan.trunks)))
            raise Refused(f"port {port.name} is a trunk of VLANs {carried}: it drops frames without a tag, as ours are", FOUND)
        return 0
    return port.vlan.tag or 0


# -- attachments ----------------------------------------------------------------------------------------------------------


@contextmanager
def _attachments(site: Site, wanted: Wanted, tell: Tell) -> Iterator[Pair]:
    tell("reading the records and asking the switch")
    records = [_record(site, name) for name in wanted.names]
    ends = (_end(records[0]), _end(records[1]))
    _require_path(ends, wanted.size)
    for record in records:
        _require_rest(site, record)
    _require_idle(site, ends)
    _tidy(site)
    options = _options(ends)
    with ExitStack() as stack:
        borrowed = [stack.enter_context(_stand_in(site, record, options)) for record in records]
        _listen(site, list(zip(ends, borrowed, strict=True)), tell)
        fronts = []
        for end, standin in zip(ends, borrowed, strict=True):
            tell(f"attaching to {end.name}")
            if standin.place is None:
                _require_idle(site, [end])
            fronts.append(_attached(end, standin))
        yield Pair(ends, (fronts[0], fronts[1]), Remote.of(site))


def _listen(site: Site, borrowed: Sequence[tuple[End, StandIn]], tell: Tell) -> None:
    """Until OVS has come to those to which it connects: so long, and no longer, are the names of their sockets taken."""
    from userspace_cni.fastpath.errors import SocketRefused

    listening = [(end, standin) for end, standin in borrowed if standin.place]
    with ExitStack() as names:
        if listening:
            names.enter_context(_noted(site, [standin.place for _, standin in listening if standin.place]))
        for end, standin in listening:
            try:
                names.enter_context(standin.listen())
            except SocketRefused as error:
                raise Refused(f"{end.name} can not be used: {error}", FOUND) from error
        for end, standin in listening:
            tell(f"waiting for the switch at {end.name}: it tries to connect once a second")
            standin.await_switch()


def _attached(end: End, standin: StandIn) -> FrontEnd:
    from userspace_cni.fastpath.errors import SocketRefused

    try:
        return standin.attach(ATTACH_S)
    except SocketRefused as error:
        hint = "" if standin.place else "; where ovs-vswitchd was restarted, userspace-cni gc puts its new socket in place"
        raise Refused(f"{end.name} can not be used: {error}{hint}", FOUND) from error


@contextmanager
def _noted(site: Site, places: Sequence[SocketFile]) -> Iterator[None]:
    """While inside, a note tells where sockets of ours are, should we be killed."""
    from userspace_cni.base.root import HostRoot
    from userspace_cni.host import borrowed_sockets
    from userspace_cni.host.probe_directories import Run

    with borrowed_sockets.noted(Run.new(), places, site.settings.run_dir, HostRoot(site.settings.host_root)):
        yield


def _tidy(site: Site) -> None:
    """Remove what killed runs left: that may be a socket at one of these ports, or a probe on their bridge."""
    deadline = Deadline.after(_TIDY_S)
    try:
        for test in site.node.dead_tests.records(deadline):
            site.node.dead_tests.remove(test, deadline)
            left = view.joined([summary(step) for step in test.steps], "its directory")
            view.note(f"removed what a killed run had left: {left}")
    except UserspaceError as error:
        view.note(f"what a killed run left stays for now: {error}")


def _stand_in(site: Site, record: Record, options: FrontEndOptions) -> StandIn:
    from userspace_cni.probe.borrowed_socket import StandIn

    step = next((step for step in record.steps if isinstance(step, SocketFile | PlacedSocket)), None)
    if step is None:
        raise Refused(f"{name_of(record)}: its record names no socket; userspace-cni show tells its steps", FOUND)
    return StandIn(step, site.seen(step.trusted).rstrip("/"), options, access_for_switch(site))


def access_for_switch(site: Site) -> Access:
    """For a socket of ours to which OVS connects: the owner of its run directory is the user that it runs as."""
    from userspace_cni.fastpath.vhost.sockets import Access

    rundir = site.seen(site.settings.ovs_rundir)
    try:
        facts = Path(rundir).stat()
    except OSError as error:
        raise Refused(f"directory {rundir}: {error.strerror}; setting ovs_rundir (OVS_RUNDIR) names it", UNREACHABLE) from error
    return Access(SOCKET_MODE, facts.st_uid, facts.st_gid)


def _record(site: Site, name: str) -> Record:
    """The one attachment of that name."""
    found = site.records((name,))
    if len(found) != 1:
        raise Refused(f"{name!r} has several interfaces; name one of {view.joined([name_of(each) for each in found])}", USAGE)
    return found[0]


def _end(record: Record) -> End:
    step, name = port_step(record), name_of(record)
    if step is None or record.state != "ready":
        raise Refused(f"{name} is not attached: its state is {record.state}; userspace-cni gc finishes what died", FOUND)
    return End(name, step.name, step.bridge, step.mac, step.interface.mtu or MTU, untagged_vlan(step))


def _require_path(ends: Sequence[End], size: int) -> None:
    """Refuse two ends between which no frame of this size can go."""
    a, b = ends
    if a.port == b.port:
        raise Refused(f"{a.name} is both ends; two different ones are needed", USAGE)
    if a.bridge != b.bridge:
        raise Refused(f"{a.name} is on bridge {a.bridge}, {b.name} on {b.bridge}: no frame goes from one to the other", FOUND)
    if a.vlan != b.vlan:
        of = [f"{end.name} is in {f'VLAN {end.vlan}' if end.vlan else 'no VLAN'}" for end in ends]
        raise Refused(f"{of[0]}, {of[1]}: no frame goes from one to the other", FOUND)
    if a.mac == b.mac:
        raise Refused(f"{a.name} and {b.name} have the same MAC address {a.mac}: the bridge can not tell them apart", FOUND)
    longest = min(end.mtu for end in ends) + HEADER_BYTES
    if size > longest:
        raise Refused(f"frames of {size} bytes are too long: with the MTU of these ports at most {longest}", USAGE)


def _require_rest(site: Site, record: Record) -> None:
    """Refuse an attachment on which a verb works now, or has worked since its record was read."""
    try:
        with site.node.journal.container_lock(record.container_id, Deadline.after(REST_S)):
            current = site.node.journal.read_key(record.key)
    except Unavailable as error:
        raise Refused(f"{name_of(record)}: a call of the runtime works on its container now; try again", FOUND) from error
    if current != record:
        raise Refused(f"{name_of(record)} was changed a moment ago; try again", FOUND)


def _require_life(site: Site) -> None:
    """Refuse a switch that does not answer: it might have an application's connection before it, and not have said so.

    What can not be known from here, that of a database over TCP, is left to the next looks.
    """
    deadline = Deadline.after(LIFE_S)
    while (liveness := site.node.ports.watch_liveness()).state == "silent" and deadline.remaining():
        pass
    if liveness.state in ("dead", "silent"):
        raise Refused(f"ovs-vswitchd is {liveness.state}: {liveness.reason}; see its log", UNREACHABLE)


def _require_idle(site: Site, ends: Sequence[End]) -> None:
    """Refuse ports that are in use, or can not be used. Raises Unavailable when the switch can not be asked."""
    problem = site.switch_problem()
    if problem:
        raise Refused(f"the switch can not be asked, and may have ports in use: {problem}", UNREACHABLE)
    _require_life(site)
    ports: Mapping[str, SwitchPort] = {port.name: port for port in site.node.ports.known()}
    for end in ends:
        port = ports.get(end.port)
        if port is None:
            raise Refused(f"{end.name}: the switch has no port {end.port}; userspace-cni gc makes it again", FOUND)
        if port.error:
            raise Refused(f"{end.name}: the switch says of port {end.port}: {port.error}", FOUND)
        if port.bridge != end.bridge:
            raise Refused(f"{end.name}: port {end.port} is on bridge {port.bridge}, and was made on {end.bridge}", FOUND)
        told = port.link_state == "up" or port.status.get("status") == "connected"
        if told or (port.interface_type == "dpdkvhostuser" and connections_anywhere(end.port)):
            raise Refused(
                f"{end.name} is in use: its pod is connected to port {end.port}, or another ping or load is. "
                "Attaching would cut that off. "
                "Stop the pod's application, or use temporary ports on the same bridge: "
                f"--bridge {end.bridge} without names",
                FOUND,
            )


# -- temporary ports ------------------------------------------------------------------------------------------------------


@contextmanager
def _temporary(site: Site, wanted: Wanted, tell: Tell, ending: Ending) -> Iterator[Pair]:
    from userspace_cni.fastpath.vhost.front_end import Listener

    with site.probe_ports("measurement") as ports:
        ending.listen()  # until `ports` cleans up, a signal is ours to remember
        ports.connect()
        if wanted.bridge is not None:
            ports.require_bridge(wanted.bridge)
        for leftover in ports.adopt():
            view.note(f"removed what a killed run had left: {leftover}")
        tell(f"making two ports on bridge {wanted.bridge}" if wanted.bridge else "making a bridge with two ports")
        first = ports.reserve(wanted.bridge)
        second = ports.reserve(first.bridge)
        mtu = max(MTU, wanted.size - HEADER_BYTES)
        ends = (_probe_end(first, "port A", mtu), _probe_end(second, "port B", mtu))
        options = _options(ends)
        access = access_for_switch(site)
        with ExitStack() as stack:
            listeners = [stack.enter_context(Listener(port.socket, options, access)) for port in (first, second)]
            for port in (first, second):
                ports.plug(port, mtu=mtu if mtu > MTU else None)
            tell("attaching to both")
            fronts = [stack.enter_context(listener.accept(ATTACH_S)) for listener in listeners]
            ports.join(first, second)
            yield Pair(ends, (fronts[0], fronts[1]), Remote.of(site))


def _probe_end(port: ProbePort, name: str, mtu: int) -> End:
    return End(name, port.name, port.bridge, port.mac, mtu)


# -- frames ---------------------------------------------------------------------------------------------------------------


def _options(ends: Sequence[End]) -> FrontEndOptions:
    """Buffers that hold the longest frame that the switch may send, with a VLAN's tag and to spare."""
    from userspace_cni.fastpath.vhost.front_end import FrontEndOptions

    return FrontEndOptions(room=max(end.mtu for end in ends) + HEADER_BYTES + 4)


def _greet(pair: Pair, size: int, seconds: float) -> tuple[bool, bool]:
    """Whether a frame of the other end arrived at each, at most so many seconds after the first was sent."""
    sent, heard = [0, 0], [0, 0]
    until = time.monotonic() + seconds
    while not all(heard) and time.monotonic() < until and not pair.hung_up():
        # B first: so A is known to nobody yet, and hears of B because unknown addresses go to every port
        for target, back in ((0, True), (1, False)):
            if not heard[target]:
                frame = pair.frame(size, back=back)
                sent[target] += pair.queues[1 - target].send_frames([frame])
                heard[target] += _heard(pair.queues[target], frame, _LOOK_S)
    if all(heard):  # what is late would be taken for a frame of others
        for target, back in ((0, True), (1, False)):
            until = time.monotonic() + _LATE_S
            while heard[target] < sent[target] and time.monotonic() < until:
                heard[target] += _heard(pair.queues[target], pair.frame(size, back=back), _LOOK_S)
    return heard[0] > 0, heard[1] > 0


def _heard(queue: QueuePair, frame: bytes, seconds: float) -> int:
    """How many of the frame come, of which the first is waited for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        count = sum(bytes(each[:HEADER_BYTES]) == frame[:HEADER_BYTES] for each in queue.receive_frames())
        if count:
            return count
        queue.wait(seconds)
    return 0

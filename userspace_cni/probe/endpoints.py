"""The two endpoints of a measurement, ports without an application, and the frames between them.

Must not open anything: `opening` attaches to the ports.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import BadRequest, UserspaceError
from userspace_cni.probe.remote import Remote

if TYPE_CHECKING:
    from userspace_cni.fastpath.rings.queue_pair import QueuePair
    from userspace_cni.fastpath.vhost.front_end import FrontEnd

MTU: Final = 1500
SIZE_MIN: Final = 60
SIZE_MAX: Final = 9018
HEADER_BYTES: Final = 14
ETHERTYPE: Final = bytes.fromhex("88b5")
"""Local experimental (IEEE 802): other programs ignore such a frame."""
MEET_S: Final = 3.0
_LOOK_S: Final = 0.05
_LATE_S: Final = 0.2


class Unusable(UserspaceError):
    """These ports cannot be measured now, or no frame goes between them."""


@dataclass(frozen=True)
class Endpoint:
    """One endpoint. `vlan`: the VLAN of its untagged frames, 0 for none. `mtu`: of the port, without the Ethernet header."""

    name: str
    port: str
    bridge: str
    mac: str
    mtu: int = MTU
    vlan: int = 0

    def to_json(self) -> dict[str, Any]:
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
    """Both endpoints, attached to the switch."""

    endpoints: tuple[Endpoint, Endpoint]
    fronts: tuple[FrontEnd, FrontEnd]
    remote: Remote

    @property
    def queues(self) -> tuple[QueuePair, QueuePair]:
        return self.fronts[0].pairs[0], self.fronts[1].pairs[0]

    def frame(self, size: int, *, back: bool = False) -> bytes:
        """A frame of `size` bytes from the first to the second endpoint, or `back`."""
        source, target = self.endpoints[::-1] if back else self.endpoints
        return (mac_bytes(target.mac) + mac_bytes(source.mac) + ETHERTYPE).ljust(size, b"\0")

    def hung_up(self) -> str:
        """A text when the switch has hung up on an endpoint, and on which; "" while it has not."""
        gone = [endpoint.name for endpoint, front in zip(self.endpoints, self.fronts, strict=True) if not front.is_alive()]
        return f"the switch hung up on {', '.join(gone)}: the port was removed, or ovs-vswitchd ended" if gone else ""

    def cut(self, what: str) -> str:
        """`what` happened, and what to look at when frames no longer arrive."""
        return (
            f"{what}: the way is cut, or an application took over a port of type dpdkvhostuser. Look at the flows "
            f"({self.remote.flows(self.endpoints[0].bridge)}) and the links ({self.links()})"
        )

    def links(self) -> str:
        """The command that shows whether both ports are up."""
        a, b = self.endpoints
        return self.remote.vsctl("get", "Interface", a.port, "link_state", "--", "get", "Interface", b.port, "link_state")


def endpoint_of(record: Record) -> Endpoint:
    """The endpoint of an attachment. Raises Unusable for one that has no vhost-user port, and for one that is not attached."""
    step, name = record.port, name_of(record)
    if step is not None and not step.interface.role:
        raise Unusable(
            f"{name} is a kernel link (veth), which has no vhost-user socket at which this command could take an application's "
            f"place. Use the kernel's own programs in the pod, as: {enter_words(record)} ping ADDRESS (or iperf3 for the rate)"
        )
    if step is None or record.state != "ready":
        raise Unusable(f"{name} is not attached: its state is {record.state}; userspace-cni gc finishes what died")
    return Endpoint(name, step.name, step.bridge, step.mac, step.interface.mtu or MTU, untagged_vlan(step))


def enter_words(record: Record) -> str:
    """The beginning of a command that runs in the attachment's network namespace; a program and its arguments follow."""
    if record.pod_name and record.pod_namespace:
        return f"userspace-cni enter {record.pod_namespace}/{record.pod_name} --"
    return f"nsenter --net={shlex.quote(record.netns)}"


def require_path(endpoints: Sequence[Endpoint], size: int) -> None:
    """Refuse two endpoints between which no frame of this size can go. Raises Unusable, BadRequest."""
    a, b = endpoints
    if a.port == b.port:
        raise BadRequest(f"{a.name} is both ends; two different ones are needed")
    if a.bridge != b.bridge:
        raise Unusable(f"{a.name} is on bridge {a.bridge}, {b.name} on {b.bridge}: no frame goes from one to the other")
    if a.vlan != b.vlan:
        of = [f"{endpoint.name} is in {f'VLAN {endpoint.vlan}' if endpoint.vlan else 'no VLAN'}" for endpoint in endpoints]
        raise Unusable(f"{of[0]}, {of[1]}: no frame goes from one to the other")
    if a.mac == b.mac:
        raise Unusable(f"{a.name} and {b.name} have the same MAC address {a.mac}: the bridge cannot tell them apart")
    longest = min(endpoint.mtu for endpoint in endpoints) + HEADER_BYTES
    if size > longest:
        raise BadRequest(f"frames of {size} bytes are too long: with the MTU of these ports at most {longest}")


def meet(pair: Pair, size: int) -> None:
    """Make the bridge learn where both endpoints are, by a frame each way; the first is flooded. Raises Unusable."""
    missing = [endpoint for endpoint, arrived in zip(pair.endpoints, _greet(pair, size, MEET_S), strict=True) if not arrived]
    if missing:
        a, b = pair.endpoints
        raise Unusable(
            f"no frame arrived at {', '.join([endpoint.name for endpoint in missing])} within {MEET_S:g} s. Look at "
            f"the VLANs ({pair.remote.vsctl('list', 'Port', a.port, b.port)}), "
            f"the flows ({pair.remote.flows(a.bridge)}), and the links ({pair.links()}). "
            f"With STP or RSTP on the bridge ({pair.remote.vsctl('list', 'Bridge', a.bridge)}) a port forwards nothing in its "
            "first 30 s"
        )


def mac_bytes(mac: str) -> bytes:
    """The six bytes of `aa:bb:cc:dd:ee:ff`."""
    return bytes.fromhex(mac.replace(":", ""))


def untagged_vlan(port: OvsPort) -> int:
    """The VLAN of an untagged frame that enters the port, 0 for none. Raises Unusable where the port cannot take such frames.

    ovs-vswitchd.conf.db(5), Port.vlan_mode: without one, a port with a tag is an access port, and any other a trunk.
    """
    mode = port.vlan.mode or ("access" if port.vlan.tag is not None else "trunk")
    if mode == "native-tagged":
        raise Unusable(f"port {port.name} is native-tagged: it tags the frames that it sends, and ours have no tag")
    if mode == "trunk":
        if port.vlan.trunks and 0 not in port.vlan.trunks:
            carried = ", ".join(map(str, port.vlan.trunks))
            raise Unusable(f"port {port.name} is a trunk of VLANs {carried}: it drops frames without a tag, as ours are")
        return 0
    return port.vlan.tag or 0


def _greet(pair: Pair, size: int, seconds: float) -> tuple[bool, bool]:
    """Whether a frame of the other end arrived at each, within `seconds` after the first was sent."""
    sent, received = [0, 0], [0, 0]
    until = time.monotonic() + seconds
    while not all(received) and time.monotonic() < until and not pair.hung_up():
        # B sends first: the bridge does not know A yet, and floods the frame to every port, A's too
        for target, back in ((0, True), (1, False)):
            if not received[target]:
                frame = pair.frame(size, back=back)
                sent[target] += pair.queues[1 - target].send_frames([frame])
                received[target] += _receive(pair.queues[target], frame, _LOOK_S)
    if all(received):  # a late frame would be counted as a frame of others
        for target, back in ((0, True), (1, False)):
            until = time.monotonic() + _LATE_S
            while received[target] < sent[target] and time.monotonic() < until:
                received[target] += _receive(pair.queues[target], pair.frame(size, back=back), _LOOK_S)
    return received[0] > 0, received[1] > 0


def _receive(queue: QueuePair, frame: bytes, seconds: float) -> int:
    """Wait up to `seconds` for a copy of the frame; how many came."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        count = sum(bytes(each[:HEADER_BYTES]) == frame[:HEADER_BYTES] for each in queue.receive_frames())
        if count:
            return count
        queue.wait(seconds)
    return 0

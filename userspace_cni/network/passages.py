"""Whether the node forwards for a gateway: one datagram goes from the gateway's port to an outside of ours, and an answer back.

The switch hands the datagram to the gateway's link like a pod's, the node's own forward path brings it to a link of ours, and
the answer ends in the switch: no frame reaches a pod or a wire, and no row of OVSDB is written. The kernel's trace shows where
a lost datagram ended. A result that cannot be proven so is unknown, neither "passes" nor "lost".
"""

from __future__ import annotations

import secrets
import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING, Any, Final, Literal

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.netlink.node_kernel import Kernel, at_node
from userspace_cni.host.netlink.route_messages import MAIN
from userspace_cni.host.netlink.trace_messages import BACK, RULE, THERE
from userspace_cni.host.node_net import legacy_rules, nft_program, packet_trail
from userspace_cni.host.node_net.forward_path import ForwardPath, PathEnds, forward_path
from userspace_cni.host.node_net.packet_trail import AFTER, BEFORE, ROUTING, Trail
from userspace_cni.host.node_net.udp_frames import Datagram, build_frame, read

if TYPE_CHECKING:
    from userspace_cni.base.gateways import Gateway
    from userspace_cni.node.installation import Installation
    from userspace_cni.switch.openflow.port_frames import PortFrames
    from userspace_cni.switch.ovsdb.switch_reads import BridgeLook
    from userspace_cni.switch.ports import PortDriver

State = Literal["passes", "lost", "unknown"]

PASSAGE_S: Final = 5.0
"""Seconds for one gateway and version of IP: two for each datagram at most, and what it takes to look for a lost one."""
CHANGES: Final = 2
"""Transactions of nftables that one takes: its table comes, and goes."""
_ARRIVAL_S: Final = 2.0
_SILENCE_S: Final = 0.2
"""The kernel leads a packet through all hooks at once: what it has told nothing more of by then is lost."""
_RELEASE_S: Final = 1.0
_AGAIN: Final = 8
"""Datagrams by which the counters of the legacy iptables are made to tell."""
_WAYS: Final = {THERE: "on the way out", BACK: "on the way back"}
_SYSCTLS: Final = {4: "net.ipv4.ip_forward, rp_filter", 6: "net.ipv6.conf.all.forwarding"}


@dataclass(frozen=True)
class Passage:
    """What became of the datagrams of one gateway and version of IP; `reason`: where one was lost, or why it is unknown."""

    gateway: str
    version: int
    state: State
    reason: str = ""


class _Unknown(Exception):
    """Why nothing is known."""


class _DatagramLost(Exception):
    """Where a datagram was lost."""


Uplinks = Mapping[str, Mapping[int, str]]
"""By gateway and version of IP, the link by which the node leads what comes from there to elsewhere."""


def passages(
    gateways: Sequence[Gateway], here: Installation, ports: PortDriver, uplinks: Uplinks, deadline: Deadline
) -> tuple[Passage, ...]:
    """Of each gateway and version of IP, one after the other; none more once the switch does not answer. Never fails."""
    found: list[Passage] = []
    away = ""
    for gateway in gateways:
        for version in sorted({subnet.version for subnet in gateway.subnets}):
            if away:
                found.append(Passage(gateway.port, version, "unknown", away))
                continue
            uplink = uplinks.get(gateway.port, {}).get(version, "")
            run = _PassageTrial(gateway, version, here, ports, uplink, deadline.within(PASSAGE_S))
            found.append(_passage(run))
            away = run.away
    return tuple(found)


def _passage(run: _PassageTrial) -> Passage:
    try:
        run.make()
    except _DatagramLost as lost:
        return Passage(run.gateway.port, run.version, "lost", str(lost))
    except _Unknown as unknown:
        return Passage(run.gateway.port, run.version, "unknown", str(unknown))
    except UserspaceError as error:
        return Passage(run.gateway.port, run.version, "unknown", str(error))
    return Passage(run.gateway.port, run.version, "passes")


class _PassageTrial:
    """One passage."""

    def __init__(
        self, gateway: Gateway, version: int, here: Installation, ports: PortDriver, uplink: str, deadline: Deadline
    ) -> None:
        self.gateway, self.version, self._ports, self._uplink = gateway, version, ports, uplink
        self._deadline = deadline
        self._mac = b"\2" + secrets.token_bytes(5)
        self._place = here.settings.switch_netns, here.root
        self._rundir = here.settings.ovs_rundir
        self.away = ""
        """Why the switch cannot be asked; "" while it can."""

    def make(self) -> None:
        """Send and answer. Raises _Lost, _Unknown, UserspaceError."""
        try:
            port, outward = self._port()
            switch = self._connected(port)
        except Unavailable as error:
            self.away = str(error)
            raise
        with switch:
            try:
                with forward_path(self._ends(asks=not outward), *self._place, self._deadline) as way:
                    self._there_and_back(way, switch)
            finally:
                switch.release(Deadline.after(_RELEASE_S))

    def _connected(self, port: int) -> PortFrames:
        from userspace_cni.switch.openflow.openflow_messages import cookie_of
        from userspace_cni.switch.openflow.port_frames import PortFrames

        path = self._place[1].path(f"{self._rundir}/{self.gateway.bridge}.mgmt")
        return PortFrames(path, port, self._mac, cookie_of(secrets.randbits(32)), self._deadline)

    def _port(self) -> tuple[int, bool]:
        """The number of the gateway's port, and whether its bridge leads to other machines. Raises _Unknown, Unavailable."""
        from userspace_cni.switch.interfaces import read_port_number
        from userspace_cni.switch.ovsdb.switch_reads import look_at_bridge

        number = read_port_number(self._ports.client, self.gateway.port, self._deadline)
        if not number:
            raise _Unknown("the switch has not opened the gateway's port")
        name = self.gateway.bridge
        look: Callable[[Any], BridgeLook] = partial(look_at_bridge, name=name)
        # once there is a NIC no question may reach its wire, also of one that another program has just added
        what = f"bridge {name}: looking at it"
        bridge = self._ports.look(look, {}, what, self._deadline, enough=lambda found: bool(found.outward))
        return number, bool(bridge.outward)

    def _ends(self, *, asks: bool) -> PathEnds:
        gateway, version = self.gateway, self.version
        egress = gateway.egress_gateway
        is_led = egress is not None and ip_address(egress.via).version == version
        taken = [
            *(str(ip_interface(each).ip) for each in gateway.addresses),
            *gateway.next_hops,
            *(each.gw for each in gateway.routes),
        ]
        return PathEnds(
            link=gateway.port,
            subnet=next(each for each in gateway.subnets if each.version == version),
            taken=frozenset(map(ip_address, [*taken, *([egress.via] if egress else [])])),
            mac=self._mac,
            table=egress.table if egress and is_led else MAIN,
            uplink=self._uplink,
            avoided=[net for each in gateway.not_masqueraded if (net := ip_network(each)).version == version],
            asks=asks,
        )

    def _there_and_back(self, way: ForwardPath, switch: PortFrames) -> None:
        asked = Datagram(way.inside, _any_port(), way.outside, _any_port(), secrets.token_bytes(16))

        def send() -> None:
            switch.hand(build_frame(asked, way.gateway, self._mac), self._deadline)

        def arrived() -> Datagram | None:
            return next((each for each in way.read() if each.said == asked.said), None)

        there = Trail(way.table, THERE)
        seen = self._sent(send, arrived, way.watched()[0], way, there)
        if seen is None:
            raise self._loss(there, way, send)
        answer = Datagram(way.outside, asked.target_port, seen.source, seen.source_port, secrets.token_bytes(16))

        def reply() -> None:
            way.write(answer)

        def returned() -> Datagram | None:
            found = read(switch.read_frame(self._deadline))
            return found if found and found.said == answer.said else None

        back = Trail(way.table, BACK)
        if self._sent(reply, returned, switch.fileno(), way, back) is None:
            raise self._loss(back, way, reply)
        if asking := self._asking([there, back], way, diverting=True):
            raise _Unknown(f"{asking}; by another link it passes")
        if self.gateway.masquerade and seen.source == way.inside:
            raise _DatagramLost("on the way out: masquerade has no effect: a datagram leaves with the pod's address")

    def _sent(
        self, send: Callable[[], None], came: Callable[[], Datagram | None], at: int, way: ForwardPath, trail: Trail
    ) -> Datagram | None:
        """Send a datagram and follow it; what came at the descriptor `at`, None when it is lost.

        The kernel has told of all that a datagram passed before that arrives.
        """
        _, traced = way.watched()
        told = select.poll()
        told.register(traced, select.POLLIN)
        waiting = select.poll()
        for each in (at, traced):
            waiting.register(each, select.POLLIN)
        send()
        end, silent = self._deadline.within(_ARRIVAL_S), Deadline.after(_ARRIVAL_S)
        while end.remaining() and (silent.remaining() or trail.may_come):
            until = end if trail.may_come else end.within(silent.remaining())
            readable = {fd for fd, _ in waiting.poll(until.milliseconds())}
            if traced in readable and [each for each in way.read_traces() if trail.follow(each)]:
                silent = Deadline.after(_SILENCE_S)
            if at in readable and (found := came()):
                while told.poll(0):
                    _ = [trail.follow(each) for each in way.read_traces()]
                return found
            if trail.end:
                break
        return None

    def _loss(self, trail: Trail, way: ForwardPath, again: Callable[[], None]) -> Exception:
        """What is to be said of a datagram that did not arrive."""
        on = _WAYS[trail.begin]
        if trail.led_away:
            links = at_node(*self._place, "looking for a link", lambda kernel: kernel.links())
            name = next((each.name for each in links.values() if each.index == trail.led_away), f"number {trail.led_away}")
            return _Unknown(f"{on}, a routing rule or a mark leads the datagram to link {name}, where it was stopped")
        if trail.queued_by and not trail.end:
            return _Unknown(f"{on}, chain {trail.queued_by} gives the datagram to a program, which has not given it back")
        if trail.dropped_by:
            chain, rule = trail.dropped_by
            where = f"at chain {' '.join(chain)}, {self._rule(chain, rule) if rule else 'by its policy'}"
        elif trail.lost_at in (BEFORE, AFTER):
            return _Unknown(f"{on}, a datagram is lost {trail.lost_at}: tc or a chain of netdev, or a switch that is too slow")
        else:
            where = self._legacy(way, trail.begin, again) or trail.lost_at
            where += f" ({_SYSCTLS[self.version]}, or a route or rule that leads nowhere)" if where == ROUTING else ""
        is_routed = trail.begin == THERE and trail.lost_at == ROUTING and not trail.dropped_by
        if not is_routed and (asking := self._asking([trail], way, diverting=False)):
            return _Unknown(f"{on}, a datagram is lost {where}; but {asking}")
        return _DatagramLost(f"{on}: {where}")

    def _rule(self, chain: tuple[str, str, str], handle: int) -> str:
        text = nft_program.rule(chain, handle, *self._place, self._deadline)
        return f"rule {text!r}" if text else f"the rule with handle {handle}, which is gone"

    def _legacy(self, way: ForwardPath, begin: str, again: Callable[[], None]) -> str:
        """The rule of the legacy iptables that has ended the datagram, by its counter; "" where none has."""
        with open_switch_netns(*self._place) as netns:
            if not legacy_rules.has_tables(netns, self.version):
                return ""
        before = legacy_rules.list_ending_rules(self._saved())
        for _ in range(_AGAIN):
            again()
        self._await_again(way, begin)
        after = legacy_rules.list_ending_rules(self._saved())
        rose = [rule for rule, count in after.items() if count - before.get(rule, count) >= _AGAIN]
        return f"by legacy iptables, table {' or '.join(rose)}" if rose else ""

    def _await_again(self, way: ForwardPath, begin: str) -> None:
        """Wait until the kernel has told of all of them."""
        _, traced = way.watched()
        waiting = select.poll()
        waiting.register(traced, select.POLLIN)
        end, left = self._deadline.within(_ARRIVAL_S / 2), _AGAIN
        while left > 0 and waiting.poll(end.milliseconds()):
            left -= sum((each.table, each.chain, each.kind) == (way.table, begin, RULE) for each in way.read_traces())

    def _saved(self) -> str:
        return legacy_rules.dump_tables(self.version, *self._place, deadline=self._deadline)

    def _asking(self, trails: Sequence[Trail], way: ForwardPath, *, diverting: bool) -> str:
        """Which rules on the way ask for the uplink, by which no datagram of ours goes; "" for none."""
        link = way.uplink
        if link is None:
            return ""
        chains = {chain for each in trails for chain in each.chains}
        with open_switch_netns(*self._place) as netns:
            found = [f"chain {each}" for each in packet_trail.find_asking_chains(link, chains, netns, diverting=diverting)]
            has_legacy = legacy_rules.has_tables(netns, self.version)
        if has_legacy and legacy_rules.names(self._saved(), link.name, diverting=diverting):
            found.append("legacy iptables")
        if any(each.begin == BACK for each in trails):
            look = partial(Kernel.rules_for, link=link.name, version=self.version)
            priorities = at_node(*self._place, "looking for routing rules", look)
            found += [f"routing rule {each}" for each in priorities]
        return f"{', '.join(found)} asks for the link {link.name}, by which no datagram of ours goes" if found else ""


def _any_port() -> int:
    return 49152 + secrets.randbelow(16384)

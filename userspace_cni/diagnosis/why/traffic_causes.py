"""What the switch does with a port's frames that can be the cause: limits, a full queue, flows, mirrors, threads. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Final

from userspace_cni.attachment.listing import limits_of
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.findings import Severity
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, Findings, known
from userspace_cni.diagnosis.why.traffic_sight import Lately, TrafficSight

_NONE: Final = Lately(0, 0)
_MUCH: Final = 0.01
"""The part of the frames from which on drops are a fault; fewer are to know."""
_SHOWN: Final = 3
_FEW: Final = 32
"""Fewer frames are dropped at any start of an application, before its queues have buffers."""
_WAYS: Final = (("to_pod", "to the pod", "ingress"), ("from_pod", "from the pod", "egress"))
"""The directions, in words, and as CNI and annotations call them."""
_RULE: Final = re.compile(r"([0-9]{1,3})\. (?:(?P<match>.*), )?priority (?P<priority>[0-9]{1,5})(?:, cookie 0x[0-9a-f]{1,16})?")
_FORBIDDEN: Final = {
    "down": ("up", "it carries no frame, while OVSDB says that it is up", "error"),
    "no-receive": ("receive", "the switch drops all that the pod sends", "error"),
    "no-forward": ("forward", "the switch drops all that is sent to the pod", "error"),
    "no-flood": ("flood", "the pod gets no broadcast, and so no question for its address (ARP)", "warning"),
}
"""What OpenFlow forbids a port: the word that allows it, what follows, and how grave that is."""


def judge_limits(sight: AttachmentSight) -> Findings:
    """Frames that the port's own limits have dropped: those of the record, and those of another program."""
    traffic, port, step = known(sight.traffic), sight.port, sight.record.port
    if traffic is None or port is None or step is None:
        return
    counted = {"to_pod": traffic.causes.limit_to_pod, "from_pod": traffic.causes.limit_from_pod}
    for way, words, word in _WAYS:
        drops = counted[way] or traffic.limit_drops.get(way, 0)
        if not drops:
            continue
        seen = traffic if counted[way] else replace(traffic, lately={})  # the kernel's own drops are not among the switch's
        recorded: Rate | None = getattr(limits_of(sight.record), way)
        rate: Rate | None = recorded or getattr(port.now.limits, way)
        if rate is None and not (way == "to_pod" and port.now.qos):
            message = f"a limit {words}, which is gone now, has dropped {_part(drops, traffic, way)}"
            yield sight.found("limit-former", message, severity="note")
            continue
        limit = f"the limit {words}" + (f" of {rate.rate} bit/s (burst {rate.burst} bit)" if rate else "")
        message = f"{limit} has dropped {_part(drops, seen, way)}"
        slow = "TCP becomes slow by that, and UDP loses data"
        nothing = "nothing reaches the pod" if way == "to_pod" else "nothing that the pod sends arrives"
        yield sight.found(
            "limit-drops",
            message,
            _raise(step, recorded, way, word, sight.record.network),
            slow if traffic.frames(way) else nothing,
            _severity(drops, seen, way),
        )


def judge_unread(sight: AttachmentSight) -> Findings:
    """Frames to an application that is connected and does not take them."""
    traffic = known(sight.traffic)
    drops = traffic.causes.unread if traffic else None
    if traffic is None or not drops or not sight.is_connected:
        return
    severity = _severity(drops, traffic, "to_pod")
    if severity == "note":
        some = "some" if traffic.frames("to_pod") else "none"
        part = _part(drops, traffic, "to_pod", "dropped")
        yield sight.found("application-not-reading", f"the application has read {some} of its frames ({part})", severity=severity)
        return
    message = (
        f"the application is connected and does not take its frames: the switch has dropped {_part(drops, traffic, 'to_pod')}"
    )
    remedy = (
        "is it stopped, in a debugger, or busy? Each of its receive queues needs a core that polls it; against bursts it needs "
        "more buffers (of testpmd: --rxd=1024 --mbuf-size, --total-num-mbufs)"
    )
    why = "its receive queue was full, or had no buffers; no limit has dropped these"
    yield sight.found("application-not-reading", message, remedy, why=why, severity=severity)


def judge_too_long(sight: AttachmentSight) -> Findings:
    """Frames to the pod that are longer than its port's MTU."""
    traffic, port = known(sight.traffic), sight.port
    if traffic and port and (drops := traffic.causes.too_long):
        message = f"the switch has dropped {drops} frames to the pod that are longer than its port's MTU of {port.now.mtu}"
        remedy = f"give network {sight.record.network} the MTU of its peers (host.mtu), and recreate the pod; or lower theirs"
        yield sight.found("mtu-exceeded", message, remedy, why="who sends them is not told", severity="warning")


def judge_mirrors(sight: AttachmentSight) -> Findings:
    """Mirrors of other programs that copy the port's frames, or whose copies it gets."""
    traffic = known(sight.traffic)
    if traffic is None:
        return
    name, bridge = traffic.port.name, traffic.bridge.name
    for mirror in (each for each in traffic.bridge.mirrors if not each.ours):
        row = shlex.quote(mirror.name)
        remove = f"`ovs-vsctl -- --id=@m get Mirror {row} -- remove Bridge {bridge} mirrors @m` removes it"
        if mirror.output == name:
            message = f"mirror {mirror.name} of another program sends its copies to this port"
            why = "Open vSwitch reserves such a port for copies: it drops all other frames to and from the pod"
            yield sight.found("mirror-output-taken", message, f"find out who made it; {remove}", why=why)
            continue
        ways = [words for words, ports in (("from", mirror.from_ports), ("to", mirror.to_ports)) if name in ports]
        if mirror.output and (ways or mirror.everything):
            what = "every frame of the bridge" if mirror.everything else f"the frames {' and '.join(ways)} the pod"
            to = mirror.output if mirror.output.startswith("VLAN ") else f"port {mirror.output}"
            message = f"mirror {mirror.name} of another program copies {what} to {to}"
            why = "another program reads them, and each copy costs the switch time"
            yield sight.found("mirror-foreign", message, f"find out who made it; {remove}", why=why, severity="warning")


def judge_forbidden(sight: AttachmentSight) -> Findings:
    """What OpenFlow forbids the port."""
    traffic = known(sight.traffic)
    for word in sorted(traffic.port.config) if traffic else ():
        allowing, why, severity = _FORBIDDEN[word]
        assert traffic  # noqa: S101 - for the type checker
        message = f"OpenFlow has set port {traffic.port.name} to {word} (ovs-ofctl mod-port), which OVSDB does not show"
        remedy = f"`ovs-ofctl mod-port {traffic.bridge.name} {traffic.port.number} {allowing}`"
        yield sight.found(f"port-{word}", message, remedy, why=why, severity="warning" if severity == "warning" else "error")


def judge_flows(sight: AttachmentSight) -> Findings:
    """Flows that drop what the pod sends: none that matches, or one that says so."""
    traffic = known(sight.traffic)
    traced = traffic.traced if traffic else None
    if traffic is None or traced is None or not traced.dropped or (traced.normal and not traced.reason):
        return
    bridge, port = traffic.bridge.name, traffic.port
    why = "a broadcast of the pod reaches no port"
    if not traced.rule:
        message = f"no flow of bridge {bridge} matches what the pod sends (its fail_mode is {traffic.bridge.fail_mode})"
        remedy = (
            f"`ovs-ofctl add-flow {bridge} actions=NORMAL`, unless a controller is to write the flows; "
            f"`ovs-vsctl del-fail-mode {bridge}` brings that flow back without one"
        )
        yield sight.found("flows-none", message, remedy, why=why)
        return
    if port.config or traced.reason.endswith("mirroring"):
        return  # told by what it follows from
    message = f"a flow of bridge {bridge} drops what the pod sends: '{traced.rule}'"
    message += f" ({traced.reason})" if traced.reason else ""
    rule = _RULE.fullmatch(traced.rule)
    remedy = f"`ovs-ofctl dump-flows {bridge}` shows it; find out who wrote it"
    if rule:
        fields = ",".join(filter(None, (f"table={rule[1]}", f"priority={rule['priority']}", rule["match"])))
        remedy += f"; `ovs-ofctl --strict del-flows {bridge} {shlex.quote(fields)}` removes it"
    yield sight.found("flows-drop", message, remedy, why=why)


def judge_polling(sight: AttachmentSight) -> Findings:
    """Whether a thread polls the port's queues, and on the right NUMA node."""
    traffic, port = known(sight.traffic), sight.port
    if traffic is None or port is None or traffic.polling is None or not port.interface_type.startswith("dpdk"):
        return
    threads, name = traffic.polling.threads, port.name
    mask = "`ovs-vsctl get Open_vSwitch . other_config`: pmd-cpu-mask says on which cores they run"
    queues = [(thread, queue) for thread in threads for queue in thread.queues if queue.port == name]
    if sight.is_connected and not queues:
        isolated = [str(each.core) for each in threads if each.isolated]
        holders = sorted({queue.port for each in threads if each.isolated for queue in each.queues})
        message = f"no thread of the switch polls port {name}"
        message += f": core {', '.join(isolated)} polls only what was given to it by name" if isolated else ""
        remedy = f"add a core: {mask}"
        if isolated:
            other = "other_config:pmd-rxq-assign=group other_config:pmd-rxq-isolate=false"
            taken = [f"`ovs-vsctl remove Interface {shlex.quote(each)} other_config pmd-rxq-affinity`" for each in holders]
            remedy = f"let it poll other ports, too: `ovs-vsctl set Open_vSwitch . {other}`"
            remedy += f"; or take it from the port that has it alone: {' or '.join(taken[:_SHOWN])}" if taken else ""
        yield sight.found("port-unpolled", message, remedy, why="nothing that the pod sends is read")
    numa, held = port.status.get("numa", ""), {str(each.numa) for each in threads}
    if sight.is_connected and threads and numa and numa not in held:
        message = f"the application's memory is on NUMA node {numa}, where no thread of the switch runs"
        why = "each frame crosses between the nodes, which costs about half of the rate"
        yield sight.found("port-numa-remote", message, f"add a core of that node: {mask}", why=why, severity="warning")
    idle = sorted(queue.number for _, queue in queues if not queue.enabled)
    if sight.is_connected and idle and len(idle) < len(queues):
        message = f"the application uses {len(queues) - len(idle)} of the {len(queues)} queues that it has announced"
        remedy = "start it with as many queues as it uses (of testpmd: --txq, --rxq)"
        yield sight.found("queues-unused", message, remedy, severity="note")


def _part(drops: int, traffic: TrafficSight, way: str, what: str = "frames") -> str:
    """How many of how many were dropped, since the port was opened and lately."""
    text = f"{drops} of {drops + traffic.frames(way)} {what} so far"
    lately = traffic.lately.get(way, _NONE)
    return f"{text}, and {lately.dropped} of {sum(lately)} in the moment of this look" if any(lately) else text


def _severity(drops: int, traffic: TrafficSight, way: str) -> Severity:
    """A fault is much of all frames, unless none is dropped any more while others pass."""
    lately = traffic.lately.get(way, _NONE)
    over = lately.moved > 0 and lately.dropped == 0
    dropped = drops + lately.dropped
    much = dropped >= _FEW and dropped >= _MUCH * (dropped + traffic.frames(way))
    return "warning" if much and not over else "note"


def _raise(step: OvsPort, limit: Rate | None, way: str, word: str, network: str) -> str:
    """How the limit is raised: by what said it, `limit` in the record."""
    if limit is None:
        set_by = "another program has set it, and no record of ours has it"
        port = shlex.quote(step.name)
        off = f"set Interface {port} ingress_policing_rate=0" if way == "from_pod" else f"clear Port {port} qos"
        return f"{set_by}: `ovs-vsctl {off}` removes it"
    terms = step.terms
    if _says(terms.noted, way, limit):
        return (
            f"raise the pod's annotation kubernetes.io/{word}-bandwidth (or ovn.kubernetes.io/{word}_rate); a running agent "
            "applies it at once"
        )
    if _says(terms.runtime, way, limit):
        return f"raise the pod's annotation kubernetes.io/{word}-bandwidth, which its runtime has handed over; recreate the pod"
    return f"raise {word}Rate and {word}Burst of key bandwidth in network {network}, and recreate the pod"


def _says(limits: Limits, way: str, limit: Rate) -> bool:
    return bool(getattr(limits, way) == limit)


OF_TRAFFIC: Final = (judge_forbidden, judge_mirrors, judge_flows, judge_polling, judge_limits, judge_too_long, judge_unread)
"""All judges of this module, in their order (`causes.JUDGES`)."""

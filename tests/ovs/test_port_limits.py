"""Limits of ports: their rows, what ovs-vswitchd enforces, changes of existing ports, and what is left of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import LINK, STORE, attach, kernel_port, soon
from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.port_now import find_changes
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.limits import Limits, Netem, Rate
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.front_end import FrontEndListener
from userspace_cni.switch.ports import PortDriver

MakePort = Callable[..., OvsPort]
MBIT = 1_000_000
FRAME = bytes.fromhex("ffffffffffff02000000000188b5") + bytes(1500)
"""The head of a broadcast frame for local experiments, which the bridge floods to every other port."""
RATE, OTHER = Rate(100 * MBIT, 10 * MBIT), Rate(20 * MBIT, 2 * MBIT)


@pytest.fixture(params=[True, False], ids=["resident", "for one verb"])
def driver(request: pytest.FixtureRequest, switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> PortDriver:
    """A driver that replicates all rows, and one that replicates only what a call needs."""
    return connect(switch, links=veths, resident=request.param)


@pytest.fixture
def resident(switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> PortDriver:
    return connect(switch, links=veths, resident=True)


def limited(step: OvsPort, **limits: Any) -> OvsPort:
    return replace(step, limits=Limits(**limits))


def in_force(switch: Switch, name: str) -> dict[str, str]:
    """Type and values of the port's QoS, as ovs-vswitchd shows them."""
    first, *lines = switch.appctl("qos/show", name).split("\n\n")[0].splitlines()
    return {"type": first.rpartition(" ")[2]} | dict(line.split(": ", 1) for line in lines)


def values_of(rate: Rate, *, shaped: bool) -> dict[str, str]:
    """The values that ovs-vswitchd shows for a rate to the pod."""
    return {"max-rate": str(rate.rate)} if shaped else {"cir": str(rate.rate // 8), "cbs": str(rate.burst // 8)}


def policing(switch: Switch, name: str) -> list[int]:
    """Rate and burst of the interface."""
    row = switch.interface(name)
    return [row["ingress_policing_rate"], row["ingress_policing_burst"]]


@pytest.fixture(params=["vhost-user", "af_packet", "system"])
def kind(request: pytest.FixtureRequest, veths: Veths, port: MakePort) -> OvsPort:
    """A port of each kind that supports limits, without any."""
    if request.param == "vhost-user":
        return port()
    veths.add(LINK)
    return kernel_port(request.param)


def test_a_limit_to_the_pod_comes_changes_and_goes(switch: Switch, driver: PortDriver, kind: OvsPort) -> None:
    """The limit is in force when apply returns; a change keeps its row; without a limit, and after DEL, no row is left."""
    attach(driver, limited(kind, to_pod=RATE), soon())
    [row] = switch.rows("QoS")
    assert row["external_ids"].items() >= {"owner": "userspace-cni", "store": STORE, **kind.marks}.items()
    assert switch.port(kind.name)["qos"] == row["_uuid"]
    shaped = kind.interface.type == "system"
    assert in_force(switch, kind.name) == {"type": "linux-htb" if shaped else "egress-policer", **values_of(RATE, shaped=shaped)}
    assert driver.check(limited(kind, to_pod=RATE), soon()) == []
    attach(driver, limited(kind, to_pod=OTHER), soon())
    [changed] = switch.rows("QoS")
    assert changed["_uuid"] == row["_uuid"]
    assert in_force(switch, kind.name).items() >= values_of(OTHER, shaped=shaped).items()
    assert len(switch.rows("Queue")) == shaped
    assert [drift.field for drift in driver.check(limited(kind, to_pod=RATE), soon())] == ["qos", "limit to the pod"]
    attach(driver, kind, soon())
    assert (switch.rows("QoS"), switch.rows("Queue"), switch.port(kind.name)["qos"]) == ([], [], [])
    assert "egress-policer" not in switch.appctl("qos/show", kind.name)
    assert driver.check(kind, soon()) == []
    attach(driver, limited(kind, to_pod=RATE), soon())
    driver.undo(kind, soon())
    assert (switch.rows("QoS"), switch.rows("Queue"), switch.bridges()) == ([], [], [])


def test_what_limits_a_port_now(switch: Switch, resident: PortDriver, kind: OvsPort) -> None:
    """A list of ports has the limits as they are: also after another program has changed the rows of QoS and Queue alone."""
    polices = kind.interface.polices
    step = limited(kind, to_pod=RATE, from_pod=OTHER) if polices else limited(kind, to_pod=RATE)
    attach(resident, step, soon())

    def changes() -> list[tuple[str, Any]]:
        return [(each.field, each.found) for port in resident.list_ports() for each in find_changes(step, port.now)]

    assert changes() == []
    table, column = ("QoS", "cir") if polices else ("Queue", "max-rate")
    switch.vsctl("set", table, str(switch.rows(table)[0]["_uuid"]), f"other_config:{column}=1000000")
    told = f"{8 * MBIT if polices else MBIT} bit/s (burst {RATE.burst} bit)"
    wait_until(lambda: changes() == [("limit to the pod", told)], what="the other rate")
    switch.vsctl("clear", "Port", step.name, "qos", "--", "set", "Port", step.name, "tag=7", "trunks=[3,4]")
    told_of_vlans = [("tag", 7), ("trunks", (3, 4))]
    wait_until(lambda: changes() == [*told_of_vlans, ("limit to the pod", Absent("none"))], what="no rate")


def test_a_limit_from_the_pod_comes_changes_and_goes(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A vhost-user port is policed in kbit/s; CHECK reports when someone has changed it."""
    step = limited(port(), from_pod=RATE)
    attach(driver, step, soon())
    assert policing(switch, step.name) == [100_000, 10_000]
    assert driver.check(step, soon()) == []
    switch.vsctl("set", "Interface", step.name, "ingress_policing_rate=5")
    told = [("ingress_policing_rate", 5)]  # a driver with a copy of OVSDB hears of it a moment later
    wait_until(lambda: [(drift.field, drift.found) for drift in driver.check(step, soon())] == told, what="CHECK to tell")
    attach(driver, limited(port(), from_pod=OTHER), soon())
    assert policing(switch, step.name) == [20_000, 2_000]
    attach(driver, port(), soon())
    assert policing(switch, step.name) == [0, 0]


@pytest.mark.parametrize(
    ("kind", "limits", "words"),
    [
        ("afxdp", Limits(to_pod=RATE), "opened as afxdp takes no limits of the switch.*open it as system"),
        ("system", Limits(from_pod=RATE), "opened as system has no limit for what comes from the pod"),
        ("system", Limits(to_pod=RATE, netem=Netem(1)), "exclude each other"),
        ("af_packet", Limits(netem=Netem(1)), "'netem' is the kernel's"),
    ],
)
def test_a_limit_that_the_kind_cannot_have_is_refused(
    switch: Switch, resident: PortDriver, veths: Veths, kind: KernelPort, limits: Limits, words: str
) -> None:
    """The refusal names the limit and what would work; nothing is written."""
    veths.add(LINK)
    with pytest.raises(SwitchRefused, match=words):
        resident.apply(replace(kernel_port(kind), limits=limits), soon())
    assert (switch.bridges(), switch.rows("QoS")) == ([], [])


def test_a_limit_that_the_kernel_lacks_is_an_error(switch: Switch, resident: PortDriver, veths: Veths) -> None:
    """OVSDB accepts any QoS row: if reading back shows that ovs-vswitchd could not set it, ADD fails and says what would help."""
    veths.add(LINK)
    step = limited(kernel_port("system"), netem=Netem(latency_ms=5, loss=1))
    rest = resident.apply(step, soon())
    assert rest is not None
    if "linux-netem" in switch.appctl("qos/show", LINK):
        rest()
        assert resident.check(step, soon()) == []
    else:
        with pytest.raises(SwitchRefused, match=r"has set .*, not linux-netem with latency 5000, loss 1; .*modprobe sch_netem"):
            rest()
    resident.undo(step, soon())
    assert switch.rows("QoS") == []


def test_a_row_that_is_not_ours_is_left_alone(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """An administrator's QoS stays on a port without limits; a limit of ours replaces it on the port, and its row stays."""
    step = port()
    attach(driver, step, soon())
    switch.vsctl(
        "--",
        "set",
        "Port",
        step.name,
        "qos=@q",
        "--",
        "--id=@q",
        "create",
        "QoS",
        "type=egress-policer",
        "other_config:cir=1000000",
        "other_config:cbs=100000",
    )
    foreign = switch.port(step.name)["qos"]
    attach(driver, step, soon())
    assert switch.port(step.name)["qos"] == foreign
    attach(driver, limited(step, to_pod=RATE), soon())
    assert switch.port(step.name)["qos"] != foreign
    driver.undo(step, soon())
    assert [row["_uuid"] for row in switch.rows("QoS")] == [foreign]


def test_what_another_program_leaves_of_a_port_is_swept(switch: Switch, resident: PortDriver, veths: Veths) -> None:
    """Rows left of a port that ovs-vsctl deleted are swept; those in use, of another store or without an owner stay."""
    veths.add(LINK)
    step = limited(kernel_port("system"), to_pod=RATE)
    attach(resident, step, soon())
    assert resident.sweep_limits(soon()) == 0
    switch.vsctl("del-port", LINK)
    switch.vsctl("create", "QoS", "type=linux-htb")
    switch.vsctl("create", "Queue", "external_ids:owner=userspace-cni", "external_ids:store=another")
    assert len(switch.rows("QoS")) == 2
    wait_until(lambda: LINK not in resident.list_owned(), what="the replica knows")
    assert resident.sweep_limits(soon()) == 2
    assert resident.sweep_limits(soon()) == 0
    assert [row["external_ids"] for row in switch.rows("QoS")] == [{}]
    assert [row["external_ids"]["store"] for row in switch.rows("Queue")] == ["another"]


def test_undo_takes_what_another_program_left(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """CHECK reports a port that ovs-vsctl deleted, and its limit; DEL deletes what is left of the limit."""
    step = limited(port(), to_pod=RATE)
    attach(driver, step, soon())
    switch.vsctl("del-port", step.name)
    assert switch.rows("QoS")
    assert [drift.field for drift in driver.check(step, soon())] == ["", "limit to the pod"]
    driver.undo(step, soon())
    assert (switch.rows("QoS"), switch.bridges()) == ([], [])


@pytest.mark.usefixtures("warm")
def test_rates_are_kept_and_drops_are_told(switch: Switch, resident: PortDriver, port: MakePort) -> None:
    """With twice the limit offered in each direction, the limit arrives, and drops are counted for the limited port alone."""
    limits = Limits(to_pod=Rate(20 * MBIT, MBIT), from_pod=Rate(40 * MBIT, MBIT))
    steps = [replace(port(1), limits=limits), port(2)]
    listeners = [FrontEndListener(step.server_path) for step in steps]
    for step in steps:
        attach(resident, step, soon())
    ends = [each.accept() for each in listeners]
    pod, other = (each.pairs[0] for each in ends)
    try:
        wait_until(lambda: other.send_frames([FRAME]) and pod.receive_frames(), what="a first frame")
        wait_until(lambda: pod.send_frames([FRAME]) and other.receive_frames(), what="a first frame back")
        for source, sink, limit in ((other, pod, limits.to_pod), (pod, other, limits.from_pod)):
            assert limit
            # other work on the machine may take from one measurement what would have arrived
            wait_until(lambda: abs(arriving(source, sink, 2 * limit.rate) / limit.rate - 1) < 0.15, what=f"{limit} arrives")  # noqa: B023
    finally:
        for end, listener in zip(ends, listeners, strict=True):
            end.close()
            listener.close()
    switch.write_statistics()
    [drops] = wait_until(
        lambda: [each for each in resident.read_limit_drops(soon()) if each.to_pod and each.from_pod], what="drops"
    )
    assert drops.name == steps[0].name


def test_what_a_qdisc_drops_is_told(switch: Switch, resident: PortDriver, veths: Veths) -> None:
    """Drops of a kernel port are its qdisc's, asked of ovs-vswitchd; None if it has no limit."""
    veths.add(LINK)
    attach(resident, limited(kernel_port("system"), to_pod=RATE), soon())
    assert [(each.name, each.to_pod, each.from_pod) for each in resident.read_limit_drops(soon())] == [(LINK, 0, None)]
    assert "linux-htb" in switch.appctl("qos/show", LINK)


def arriving(source: QueuePair, sink: QueuePair, offered: int, seconds: float = 2.0) -> float:
    """Bit/s of frames that arrive while so many are sent, after a moment in which the bucket empties."""
    bits, sent, counted, since, begin = len(FRAME) * 8, 0, 0, 0.0, time.monotonic()
    while (now := time.monotonic() - begin) < seconds:
        if sent * bits <= offered * now:
            sent += source.send_frames([FRAME] * 8)
        got = len(sink.receive_frames(256))
        if now < seconds / 4:
            since = now
        else:
            counted += got
    return counted * bits / (now - since)


def test_a_living_ports_limit_follows_a_restart(own_switch: Switch, connect: Callable[..., PortDriver]) -> None:
    """After ovs-vswitchd was killed and started, it sets the limits of all ports again."""
    veths = Veths(own_switch)
    driver = connect(own_switch, links=veths, resident=True)
    veths.add(LINK)
    step = limited(kernel_port("system"), to_pod=RATE)
    attach(driver, step, soon())
    own_switch.kill_vswitchd()
    own_switch.restart_vswitchd()
    wait_until(lambda: driver.check(step, soon()) == [], what="the limit is in force")

"""A node that there is not, as `top` sees it: for tests of what is drawn, and for the picture in the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from userspace_cni.base.polling import PolledQueue, PollingReading, PollingThread
from userspace_cni.cli.top.top_layout import TopPicture
from userspace_cni.cli.top.top_rows import LimitUse, RowChoice, TopRow, TopUplink, choose
from userspace_cni.fastpath.memory.hugepages import HugepagePool
from userspace_cni.node.port_rates import CountersReading, TrafficRates, total
from userspace_cni.node.traffic import Traffic

_LOADS = {(0, 2): 0.93, (0, 4): 0.41, (1, 18): 0.08, (1, 20): 0.0}
_PODS = (
    ("core/upf-7f6d9c5b8-x2v4n/n3", "n3-access", 2_410_000, 2_380_000, 512, 0, 0),
    ("core/upf-7f6d9c5b8-x2v4n/n6", "n6-internet", 2_380_000, 2_400_000, 540, 0, 0),
    ("core/amf-0/n2", "n2-control", 1_240, 1_180, 220, 0, 0),
    ("media/transcoder-5c9f8-kk7ql/net1", "media", 81_300, 84_900, 1_180, 0, 1_940),
    ("media/origin-6b8d4-p9w2s/net1", "media", 84_100, 80_700, 1_200, 3_310, 0),
    ("lab/pktgen-0/net1", "lab", 0, 1_150_000, 64, 0, 0),
    ("lab/pktgen-1/net1", "lab", 1_150_000, 0, 64, 0, 0),
    ("tenant-a/router-vm/net1", "tenant-a", 12_400, 9_800, 610, 0, 0),
    ("tenant-b/firewall-vm/net1", "tenant-b", 43, 41, 98, 0, 0),
)
_UPLINKS = (
    TopUplink("ens1f0np0", "br-int", "up", TrafficRates(2_390_000.0, 2_400_000.0, 10.31e9, 9.86e9, 0.0, 0.0)),
    TopUplink("ens1f1np1", "br-int", "up", TrafficRates(83_000.0, 82_000.0, 789e6, 781e6, 0.0, 120.0)),
)


def made_threads(cores: Sequence[tuple[int, int]] = tuple(_LOADS)) -> PollingReading:
    """Threads on these cores, by NUMA node and core, with two queues each."""
    return PollingReading(
        tuple(
            PollingThread(core, numa, queues=tuple(PolledQueue(f"port-{core}-{number}", 0, True, 1) for number in range(2)))
            for numa, core in cores
        ),
        5,
    )


def made_traffic() -> Traffic:
    """Of a switch that lives."""
    pools = tuple(HugepagePool(1 << 30, node, 16, free, None, 0) for node, free in ((0, 5), (1, 11)))
    alive = "ovs-vswitchd (Open vSwitch) 3.5.0"
    reading = CountersReading(0.0, {}, "p")
    return Traffic("alive", alive, up_s=1_054_800.0, counters=reading, threads=made_threads(), pools=pools)


def made_rows() -> list[TopRow]:
    """Pods of a telephone network, of media, of tenants, and one of each state that is not good."""
    rows = []
    for number, (name, network, to, away, size, lost_to, lost_away) in enumerate(_PODS):
        rates = TrafficRates(float(to), float(away), to * size * 8.0, away * size * 8.0, float(lost_to), float(lost_away))
        core = (2, 2, 4, 4, 4, 2, 2, 18, 18)[number]
        shares = {core: (38, 39, 0, 9, 8, 14, 2, 6, 0)[number]}
        limits = {"to_pod": LimitUse(800_000_000, 0), "from_pod": LimitUse(800_000_000, 1940)} if network == "media" else {}
        kind = "dpdkvhostuserclient"
        rows.append(TopRow(name, network, "br-int", f"port-{number}", kind, "connected", "", rates, limits, shares))
    idle = replace(rows[-1], name="lab/pktgen-2/net1", network="lab", state="no app", rates=TrafficRates(), cores={20: 0})
    broken = replace(idle, name="tenant-b/cache-0/net1", network="tenant-b", state="no port", cores={}, problem="gone")
    veth = replace(rows[2], name="core/amf-0/eth1", network="oam", state="link up", kind="system", cores={})
    return [*rows, idle, broken, veth]


def made_picture(choice: RowChoice | None = None, rows: Sequence[TopRow] | None = None) -> TopPicture:
    """All of it."""
    every = made_rows() if rows is None else rows
    return TopPicture(
        "worker-3",
        "14:07:31",
        made_traffic(),
        agent="ready",
        every=every,
        rows=choose(every, choice or RowChoice()),
        uplinks=_UPLINKS,
        total=total(row.rates for row in every),
        loads=_LOADS,
    )

"""Limits as columns of OVSDB, in the unit of each, and what ovs-vswitchd reports as in force."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.attachment.port_now import PortNow, find_changes
from userspace_cni.attachment.steps import HostEnd, OvsPort, VhostUserClient
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.limits import RATE_MAX, RATE_MIN, Limits, Netem, Rate
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.switch.ovsdb.rows.interface_row import interface_row
from userspace_cni.switch.ovsdb.rows.qos_row import QosRow, policing_columns, qos_row, read_limits, why_not_in_force

RATE = Rate(100_000_000, 10_000_000)
RATES = st.builds(Rate, st.integers(1, 10**16), st.integers(1, 10**16))
HTB = QosRow("linux-htb", {"max-rate": "100000000"}, {"min-rate": "100000000", "max-rate": "100000000", "burst": "10000000"})
SHOWN = "QoS: k1 linux-htb\nmax-rate: 100000000\n\nDefault:\n  burst: 10000000\n  max-rate: 7\n  tx_errors: 3\n"


def limited(kind: KernelPort | None = None, **limits: object) -> OvsPort:
    """A port with limits; a vhost-user port unless a kind of kernel port is named."""
    interface = HostEnd(kind) if kind else VhostUserClient("/run/pod/net1")
    return OvsPort("br0", "k1", interface, limits=Limits(**limits))  # type: ignore[arg-type]


def test_each_enforcer_has_its_units() -> None:
    """Bytes for a policer to the pod, bits for a qdisc, kbit for policing from the pod, microseconds for netem."""
    assert qos_row(limited(to_pod=RATE)) == QosRow("egress-policer", {"cir": "12500000", "cbs": "1250000"})
    assert qos_row(limited("af_xdp", to_pod=RATE)) == qos_row(limited(to_pod=RATE))
    assert qos_row(limited("system", to_pod=RATE)) == HTB
    assert policing_columns(limited(from_pod=RATE)) == {"ingress_policing_rate": 100_000, "ingress_policing_burst": 10_000}
    assert policing_columns(limited()) == {"ingress_policing_rate": 0, "ingress_policing_burst": 0}
    netem = qos_row(limited("system", netem=Netem(latency_ms=5, jitter_ms=1, loss=2, queue=50)))
    assert netem == QosRow("linux-netem", {"latency": "5000", "jitter": "1000", "loss": "2", "limit": "50"})


@given(RATES)
def test_no_limit_becomes_none(rate: Rate) -> None:
    """A tiny limit is not rounded to 0, which would mean none; a huge one fits what ovs-vswitchd reads."""
    columns = policing_columns(limited(from_pod=rate))
    assert all(0 < value < 1 << 32 for value in columns.values())
    row = qos_row(limited(to_pod=rate))
    assert row is not None
    assert all(int(value) > 0 for value in row.other_config.values())


def limits_now(step: OvsPort) -> PortNow:
    """The step's limits as its rows say them."""
    row = qos_row(step)
    return PortNow(limits=read_limits(row, *policing_columns(step).values()), qos=row.type if row else "")


@given(*[st.builds(Rate, st.integers(RATE_MIN, RATE_MAX), st.integers(1, 2**31 - 2))] * 2)
def test_a_limit_that_was_written_is_read_as_the_same(to_pod: Rate, from_pod: Rate) -> None:
    """The units of columns change a limit by less than what counts as a change, whatever enforces it."""
    for step in (limited(to_pod=to_pod, from_pod=from_pod), limited("system", to_pod=to_pod)):
        assert find_changes(step, limits_now(step)) == []
    netem = limited("system", netem=Netem(latency_ms=5, jitter_ms=1, loss=2, queue=50))
    assert limits_now(netem).limits == netem.limits
    assert find_changes(netem, limits_now(netem)) == []


@pytest.mark.parametrize(
    ("row", "to_pod"),
    [
        (QosRow("egress-policer", {"cir": "much", "cbs": "-1"}), None),
        (QosRow("egress-policer", {"cir": "125"}), Rate(1000, 0)),
        (QosRow("linux-htb", {"max-rate": "5000"}), Rate(5000, 0)),
        (QosRow("linux-hfsc", {"max-rate": "5000"}), None),
    ],
)
def test_a_limit_of_another_program_is_read_as_far_as_it_is_known(row: QosRow, to_pod: Rate | None) -> None:
    """A value that is no number is none; of a type that is not ours nothing but its name is known."""
    assert read_limits(row, 0, 0) == Limits(to_pod)


@pytest.mark.parametrize("kind", get_args(KernelPort))
def test_a_kind_says_what_limits_it(kind: KernelPort) -> None:
    """Every kind of kernel port has limits of its enforcer, and refuses the others; only DPDK's ports need DPDK."""
    row = interface_row(limited(kind))
    assert row.needs_dpdk == (kind in ("af_packet", "af_xdp"))
    for limits in ({"to_pod": RATE}, {"from_pod": RATE}, {"netem": Netem(1)}):
        possible = {"policers": {"to_pod", "from_pod"}, "qdisc": {"to_pod", "netem"}, "": set()}[row.enforcer]
        if possible >= limits.keys():
            qos_row(limited(kind, **limits))
        else:
            with pytest.raises(SwitchRefused, match="port k1"):
                qos_row(limited(kind, **limits))


def test_a_vdev_is_named_by_its_link() -> None:
    """The name of the vdev is the same each time, and different for each link."""
    assert interface_row(limited("af_packet")).options == {"dpdk-devargs": "net_af_packet_k1,iface=k1"}


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (SHOWN, None),
        ("QoS: k1 linux-htb\nmax-rate: 99999996\n", None),
        ("QoS not configured on k1\n", "none"),
        ("QoS: k1 linux-other\n", "linux-other"),
        ("QoS: k1 linux-htb\nmax-rate: 20000000\n", "linux-htb with max-rate 20000000"),
        ("QoS: k1 linux-htb\n", "linux-htb with max-rate unset"),
        ("", "none"),
    ],
)
def test_what_is_in_force_is_compared(shown: str, found: str | None) -> None:
    """Another type, another rate and a missing one are reported; OVS's rounding to whole bytes is not, nor queues' own values."""
    other = why_not_in_force(HTB, shown)
    assert (other[0] if other else None) == found


def test_netem_is_in_force_with_the_values_that_the_switch_knows() -> None:
    """OVS computes latency in the kernel's ticks, so values differ a little.

    One that it does not show is one that it does not know.
    """
    row = QosRow("linux-netem", {"latency": "5000", "jitter": "1000"})
    assert why_not_in_force(row, "QoS: k1 linux-netem\nlatency: 4999\nlimit: 1000\njitter: 999\n") is None
    other = why_not_in_force(row, "QoS: k1 linux-netem\nlatency: 4999\nlimit: 1000\n")
    assert other is not None
    assert other[0] == "linux-netem with jitter unset"

"""Limits: each user's units and sources, their precedence, and what a kind of port supports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.node.configurations import read
from userspace_cni.base.errors import InvalidConfig, UnsupportedField, UserspaceError
from userspace_cni.base.limits import BURST_MIN, RATE_MAX, RATE_MIN, UNLIMITED, Limits, Netem, Rate
from userspace_cni.cni.annotations import PodInterface
from userspace_cni.cni.bandwidth import (
    QDISC_RATE_MAX,
    Bandwidth,
    limits_of,
    require_possible,
    resolve,
)

M = 1_000_000
ETH0 = PodInterface("podnet", "blue", "eth0", kubeovn_read=True)
NET1 = PodInterface("podnet", "blue", "net1", kubeovn_read=True)
CRI_DOCKERD, CONTAINERD, CRI_O = 2147483647, 4294967295, 34359738360
"""What runtimes write for a burst when no annotation gives one."""


def rate(bits: int) -> Rate:
    """A rate with the burst that is derived from it."""
    return Rate(bits, max(bits // 10, BURST_MIN))


def test_both_sources_of_a_configuration() -> None:
    """The network's limits and the runtime's are kept apart; ingress is towards the pod."""
    options = read(bandwidth={"IngressRate": 100 * M, "ingressBurst": M}, runtimeConfig={"bandwidth": {"egressRate": 50 * M}})
    assert options.bandwidth == Bandwidth(Limits(from_pod=rate(50 * M)), Limits(to_pod=Rate(100 * M, M)))


@pytest.mark.parametrize("burst", [0, CRI_DOCKERD, CONTAINERD, CRI_O])
def test_a_burst_that_is_not_given(burst: int) -> None:
    """Without a burst, and with what a runtime writes for none, it is 100 ms of the rate, and 64 KiB at least."""
    asked = {"IngressRate": 100 * M, "IngressBurst": burst, "EgressRate": 2000, "EgressBurst": burst}
    limits = read(runtimeConfig={"bandwidth": asked}).bandwidth.runtime
    assert limits == Limits(Rate(100 * M, 10 * M), Rate(2000, 64 * 1024 * 8))


@pytest.mark.parametrize("asked", [{}, {"ingressRate": 0, "ingressBurst": 0}, {"egressRate": 0, "egressBurst": CONTAINERD}])
def test_no_limit_asked_for(asked: dict[str, int]) -> None:
    """An object without rates asks for nothing, as Go's zero values do."""
    assert read(bandwidth=asked, runtimeConfig={"bandwidth": asked}, netem={}).bandwidth == Bandwidth()


def test_a_worse_line() -> None:
    """netem's values are accepted where the kernel has a queueing discipline."""
    line = {"latency_ms": 20, "jitter_ms": 5, "loss_percent": 5, "limit": 1000}
    limits = read(host={"iftype": "veth"}, netem=line).bandwidth.network
    assert limits == Limits(netem=Netem(20, 5, 5, 1000))
    assert read(host={"iftype": "veth"}, netem=dict.fromkeys(line, 0)).bandwidth.network == UNLIMITED


@pytest.mark.parametrize(
    ("keys", "code", "named"),
    [
        ({"bandwidth": 0}, 6, "'bandwidth' is a whole number"),
        ({"bandwidth": {"ingressRate": "100M"}}, 6, "'bandwidth.ingressRate' is a string"),
        ({"bandwidth": {"ingressRate": 1.5}}, 6, "'bandwidth.ingressRate' is a number"),
        ({"bandwidth": {"ingressRate": -1}}, 7, "'bandwidth.ingressRate' is -1"),
        ({"bandwidth": {"egressRate": RATE_MIN - 1}}, 7, "'bandwidth.egressRate' is 999"),
        ({"bandwidth": {"egressRate": RATE_MAX + 1}}, 7, f"'bandwidth.egressRate' is {RATE_MAX + 1}"),
        ({"bandwidth": {"ingressBurst": M}}, 7, "'bandwidth.ingressBurst' is 1000000 without a rate"),
        ({"bandwidth": {"ingressRate": 0, "ingressBurst": M}}, 7, "'bandwidth.ingressBurst' is 1000000 without a rate"),
        ({"bandwidth": {"ingressRate": M, "ingressBurst": -1}}, 7, "'bandwidth.ingressBurst' is -1"),
        (
            {"bandwidth": {"ingressRate": M, "ingressBurst": 8000}},
            7,
            "'bandwidth.ingressBurst' is 8000 bits, less than one frame",
        ),
        ({"bandwidth": {"ingresRate": M}}, 7, "'bandwidth.ingresRate' is unknown: 'bandwidth.ingressRate'"),
        ({"runtimeConfig": {"bandwidth": {"egressRate": 5}}}, 7, "'runtimeConfig.bandwidth.egressRate' is 5"),
        ({"host": {"mtu": 9000}, "bandwidth": {"egressRate": M, "egressBurst": 71999}}, 7, "one frame of the MTU 9000"),
        ({"host": {"bandwidth": {"egressRate": M}}}, 2, "'host.bandwidth' is {'egressRate': 1000000}"),
        ({"netem": {"latency_ms": 1.5}}, 7, "'netem.latency_ms' is 1.5"),
        ({"netem": {"loss_percent": 101}}, 7, "'netem.loss_percent' is 101"),
        ({"netem": {"limit": True}}, 7, "'netem.limit' is True"),
        ({"netem": {"jitter_ms": 5}}, 7, "'netem.jitter_ms' is 5 without a latency"),
    ],
)
def test_limits_that_cannot_be_meant(keys: dict[str, Any], code: int, named: str) -> None:
    """An invalid limit is one error with key, value and what would be right."""
    with pytest.raises(UserspaceError) as refused:
        read(**keys)
    assert refused.value.code == code
    assert named in refused.value.message
    assert refused.value.details


POSSIBLE: list[tuple[Any, Limits]] = [
    ("vhostuser", Limits(rate(100 * M), rate(50 * M))),
    ("vhostuser", Limits(rate(RATE_MAX), rate(RATE_MAX))),
    ("af_packet", Limits(rate(100 * M), rate(50 * M))),
    ("af_xdp", Limits(rate(100 * M), rate(50 * M))),
    ("system", Limits(rate(100 * M), rate(50 * M))),
    ("system", Limits(from_pod=rate(50 * M), netem=Netem(20))),
    ("afxdp", Limits(from_pod=rate(50 * M))),
    (None, Limits(from_pod=rate(RATE_MAX), netem=Netem(20))),
]
IMPOSSIBLE: list[tuple[Any, Limits, str]] = [
    ("vhostuser", Limits(netem=Netem(20)), "netem"),
    ("af_packet", Limits(netem=Netem(20)), "netem"),
    ("afxdp", Limits(netem=Netem(20)), "netem"),
    ("afxdp", Limits(to_pod=rate(M)), "ingressRate"),
    ("afxdp", Limits(from_pod=rate(QDISC_RATE_MAX + 1)), "egressRate"),
    ("system", Limits(to_pod=rate(QDISC_RATE_MAX + 1)), "ingressRate"),
    ("system", Limits(to_pod=rate(M), netem=Netem(20)), "netem"),
    (None, Limits(to_pod=rate(M), netem=Netem(20)), "netem"),
]


@pytest.mark.parametrize(("kind", "limits"), POSSIBLE)
def test_what_a_kind_of_port_can_do(kind: Any, limits: Limits) -> None:
    """Limits that a kind of port supports are accepted."""
    require_possible(limits, kind, 1500)


@pytest.mark.parametrize(("kind", "limits", "key"), IMPOSSIBLE)
def test_what_a_kind_of_port_can_not_do(kind: Any, limits: Limits, key: str) -> None:
    """Unsupported limits are refused with 2, by the key's name, with what would work."""
    with pytest.raises(UnsupportedField, match=f"^key 'x.{key}' is|^key '{key}' is") as refused:
        require_possible(limits, kind, 1500, "x.")
    assert refused.value.details


def test_the_first_who_says_it() -> None:
    """For each direction the precedence is runtime, pod, network; netem's values come from the pod or the network."""
    one, two, three = (rate(each * M) for each in (1, 2, 3))
    network = Limits(three, three, Netem(9))
    assert resolve(Bandwidth(UNLIMITED, network), UNLIMITED) == network
    assert resolve(Bandwidth(UNLIMITED, network), Limits(to_pod=two)) == Limits(two, three, Netem(9))
    assert resolve(Bandwidth(Limits(from_pod=one), network), Limits(two, two, Netem(1))) == Limits(two, one, Netem(1))
    assert resolve(Bandwidth(), UNLIMITED) == UNLIMITED


def test_a_living_attachment() -> None:
    """An annotation that differs from ADD's takes precedence over the runtime's value; a removed one leaves the network's."""
    one, two, three = (rate(each * M) for each in (1, 2, 3))
    bandwidth, before = Bandwidth(Limits(one, one), Limits(to_pod=three)), Limits(one, one)
    assert resolve(bandwidth, before, before) == Limits(one, one)
    assert resolve(bandwidth, Limits(two, one), before) == Limits(two, one)
    assert resolve(bandwidth, UNLIMITED, before) == Limits(to_pod=three)


def test_annotations_of_kubernetes() -> None:
    """kubernetes.io's limits are quantities, and those of the pod's default interface alone."""
    noted = {"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "1.5G"}
    assert limits_of(noted, ETH0) == Limits(rate(100 * M), rate(1500 * M))
    assert limits_of(noted, NET1) == UNLIMITED


def test_our_annotation() -> None:
    """Ours names interfaces, knows bursts, and takes precedence over all others, for each direction."""
    own = {"net1": {"ingressRate": "100M", "ingressBurst": "1M", "egressRate": 50 * M}, "eth0": {"ingressRate": "5M"}}
    noted = {
        "userspace/bandwidth": json.dumps(own),
        "kubernetes.io/egress-bandwidth": "7M",
        "ovn.kubernetes.io/ingress_rate": "9",
    }
    assert limits_of(noted, NET1) == Limits(Rate(100 * M, M), rate(50 * M))
    assert limits_of(noted, ETH0) == Limits(rate(5 * M), rate(7 * M))


def test_annotations_of_kubeovn() -> None:
    """kube-ovn's are Mbit/s and Mbit, named by provider; 0 is no limit; they are read only if the administrator allows it."""
    noted = {
        "ovn.kubernetes.io/ingress_rate": "100",
        "ovn.kubernetes.io/ingress_burst": "3",
        "ovn.kubernetes.io/egress_rate": "0",
        "podnet.blue.ovn.kubernetes.io/egress_rate": "7",
        "podnet.red.ovn.kubernetes.io/ingress_rate": "8",
        "podnet.blue.ovn.kubernetes.io/latency": "20",
        "podnet.blue.ovn.kubernetes.io/loss": "5",
    }
    assert limits_of(noted, NET1) == Limits(rate(8 * M), rate(7 * M), Netem(20, 0, 5))
    default = {name: value for name, value in noted.items() if name.startswith("ovn.")}
    assert limits_of(default, ETH0) == Limits(to_pod=Rate(100 * M, 3 * M))
    assert limits_of(noted, PodInterface("podnet", "blue", "net1")) == UNLIMITED


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("kubernetes.io/ingress-bandwidth", "fast", "is 'fast'"),
        ("kubernetes.io/ingress-bandwidth", "0", "is '0'"),
        ("kubernetes.io/egress-bandwidth", "10", "is 10"),
        ("kubernetes.io/egress-bandwidth", "1P", f"is {10**15}"),
        ("userspace/bandwidth", "100M", "not JSON"),
        ("userspace/bandwidth", "[1]", "not a JSON object"),
        ("userspace/bandwidth", '{"eth0": 5}', "its value for eth0 is 5"),
        ("userspace/bandwidth", '{"eth0": {"rate": 5}}', "has the key 'rate'"),
        ("userspace/bandwidth", '{"eth0": {"ingressRate": "-5M"}}', "ingressRate of eth0 is '-5M'"),
        ("userspace/bandwidth", '{"eth0": {"ingressRate": true}}', "ingressRate of eth0 is True"),
        ("userspace/bandwidth", '{"eth0": {"egressBurst": "5M"}}', "egressBurst of eth0 is 5000000 without a rate"),
        ("userspace/bandwidth", '{"eth0": {}, "eth0": {}}', "given twice"),
        ("ovn.kubernetes.io/ingress_rate", "10M", "is '10M'"),
        ("ovn.kubernetes.io/egress_rate", "9999999", f"is {9999999 * M}"),
        ("ovn.kubernetes.io/jitter", "5", "is 5 without a latency"),
    ],
)
def test_annotations_that_cannot_be_meant(name: str, value: str, named: str) -> None:
    """An annotation that cannot be meant is refused with its name and value, never dropped."""
    with pytest.raises(InvalidConfig) as refused:
        limits_of({name: value}, ETH0)
    assert [part for part in (f"annotation '{name}'", named) if part not in refused.value.message] == []
    assert refused.value.details


NAMES = ["userspace/bandwidth", "kubernetes.io/ingress-bandwidth", "ovn.kubernetes.io/loss", "podnet.b.ovn.kubernetes.io/limit"]
TREES: st.SearchStrategy[Any] = st.recursive(st.none() | st.integers() | st.text(), st.lists)


@given(st.dictionaries(st.sampled_from(NAMES), st.text() | st.integers().map(str) | TREES.map(json.dumps)))
def test_any_text_in_annotations(annotations: dict[str, str]) -> None:
    """Whatever a pod's author writes gives limits or a refusal."""
    try:
        limits = limits_of(annotations, ETH0)
    except InvalidConfig:
        return
    assert all(each is None or each.burst > 0 for each in (limits.to_pod, limits.from_pod))

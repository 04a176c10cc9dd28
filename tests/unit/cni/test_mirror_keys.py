"""The mirrors of which an interface is a source or an output: what networks and pods may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.node.configurations import read
from userspace_cni.base.errors import InvalidConfig, UserspaceError
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.cni.annotations import PodInterface
from userspace_cni.cni.mirror_keys import KUBEOVN_MIRROR, mirrors_of

NET1 = PodInterface("podnet", "blue", "net1", kubeovn_read=True)
IDS = MirrorSource("ids")


@pytest.mark.parametrize(
    ("said", "from_pod", "to_pod"),
    [
        ({}, True, True),
        ({"from": True}, True, False),
        ({"to": True}, False, True),
        ({"from": False}, False, True),
        ({"FROM": True, "To": True}, True, True),
        ({"from": None, "to": False}, True, False),
    ],
)
def test_directions(said: dict[str, Any], from_pod: bool, to_pod: bool) -> None:
    """Both directions count when none is given; one that is given alone excludes the other."""
    assert read(mirrors=[{"name": "ids", **said}]).mirrors == (MirrorSource("ids", from_pod, to_pod),)


@pytest.mark.parametrize(
    ("said", "from_pod", "to_pod"),
    [({"ingress": True}, True, False), ({"egress": True}, False, True), ({"ingress": True, "egress": True}, True, True)],
)
def test_directions_of_ovs_cni(said: dict[str, Any], from_pod: bool, to_pod: bool) -> None:
    """ovs-cni's ingress is what comes into the switch, from the pod; a warning says so."""
    warnings: list[str] = []
    assert read(warnings, mirrors=[{"name": "ids", **said}]).mirrors == (MirrorSource("ids", from_pod, to_pod),)
    assert [text for text in warnings if "as ovs-cni means them" in text]


def test_an_output() -> None:
    """An interface without addresses can be a mirror's output."""
    assert read(mirrorOutput="ids").mirror_output == "ids"
    assert read(host={"iftype": "veth"}, mirrorOutput="ids").mirror_output == "ids"


@pytest.mark.parametrize(
    ("keys", "code", "named"),
    [
        ({"mirrors": {}}, 6, "'mirrors' is an object"),
        ({"mirrors": ["ids"]}, 7, "'mirrors' holds 'ids'"),
        ({"mirrors": [{}]}, 7, "'mirrors.name' is ''"),
        ({"mirrors": [{"name": "../x"}]}, 7, "'mirrors.name' is '../x'"),
        ({"mirrors": [{"name": "a"}, {"name": "a"}]}, 7, "'mirrors' holds 'a' twice"),
        ({"mirrors": [{"name": "a", "from": False, "to": False}]}, 7, "no direction"),
        ({"mirrors": [{"name": "a", "ingress": False}]}, 7, "no direction"),
        ({"mirrors": [{"name": "a", "from": True, "egress": True}]}, 7, "two languages"),
        ({"mirrors": [{"name": "a", "from": "yes"}]}, 6, "'mirrors.from' is a string"),
        ({"mirrors": [{"name": "a", "ingres": True}]}, 7, "'mirrors.ingres' is unknown: 'mirrors.ingress'"),
        ({"mirrors": [{"name": str(number)} for number in range(17)]}, 7, "'mirrors' has 17 items"),
        ({"mirrorOutput": "a b"}, 7, "'mirrorOutput' is 'a b'"),
        ({"mirrorOutput": ["a"]}, 6, "'mirrorOutput' is a list"),
    ],
)
def test_mirrors_that_cannot_be_meant(keys: dict[str, Any], code: int, named: str) -> None:
    """What cannot be meant is one error with key, value and what would be right."""
    with pytest.raises(UserspaceError) as refused:
        read(**keys)
    assert refused.value.code == code
    assert named in refused.value.message
    assert refused.value.details


def test_a_pod_joins() -> None:
    """A pod joins mirrors by name, with both directions; a mirror of its network keeps the network's."""
    noted = {"userspace/mirror": '{"net1": ["ids", "all"], "net2": "other"}'}
    assert mirrors_of(noted, NET1, (), ()) == (IDS, MirrorSource("all"))
    network = (MirrorSource("ids", to_pod=False),)
    assert mirrors_of(noted, NET1, network, ()) == (*network, MirrorSource("all"))
    assert mirrors_of({"userspace/mirror": '{"net1": "ids"}'}, NET1, (), ()) == (IDS,)
    assert mirrors_of({"userspace/mirror": '{"net1": ""}'}, NET1, network, ("out",)) == network


def test_kube_ovns_mirror() -> None:
    """kube-ovn's annotation means its one mirror, with the traffic to the pod."""
    noted = {"podnet.blue.ovn.kubernetes.io/mirror": "true"}
    assert mirrors_of(noted, NET1, (), ()) == (MirrorSource(KUBEOVN_MIRROR, from_pod=False),)
    assert mirrors_of(noted, PodInterface("podnet", "blue", "net1"), (), ()) == ()
    assert mirrors_of({"podnet.blue.ovn.kubernetes.io/mirror": "false"}, NET1, (), ()) == ()


@pytest.mark.parametrize(
    ("noted", "output", "named"),
    [
        ({"userspace/mirror": '{"net1": 5}'}, "", "its value for net1 is 5"),
        ({"userspace/mirror": '{"net1": ["a", {}]}'}, "", "its value for net1 is"),
        ({"userspace/mirror": '{"net1": "a/b"}'}, "", "its value for net1 is 'a/b'"),
        ({"userspace/mirror": "ids"}, "", "is not JSON"),
        ({"podnet.blue.ovn.kubernetes.io/mirror": "yes"}, "", "podnet.blue.ovn.kubernetes.io/mirror' is 'yes'"),
        ({"userspace/mirror": '{"net1": "ids"}'}, "all", "it is the output of 'all'"),
    ],
)
def test_annotations_that_cannot_be_meant(noted: dict[str, str], output: str, named: str) -> None:
    """What a pod cannot have is refused with the annotation's name and value; an output is no source, whatever the pod says."""
    with pytest.raises(InvalidConfig) as refused:
        mirrors_of(noted, NET1, (), (output,) if output else ())
    assert named in refused.value.message
    assert refused.value.details

"""What logical ports of OVN are called, and which names can only be those of one namespace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.logical_ports import NAMINGS, is_of_namespace, logical_port_name

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
POD = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True)


def test_names() -> None:
    """Those of ovn-kubernetes' tools, and kube-ovn's; an interface beyond the first has a part of its own."""
    assert [logical_port_name("ovn-kubernetes", "blue", "web-0", each) for each in ("", "net1")] == [
        "blue_web-0",
        "blue_web-0_net1",
    ]
    names = [logical_port_name("kube-ovn", "blue", "web-0", each) for each in ("", "net.blue.ovn")]
    assert names == ["web-0.blue", "web-0.blue.net.blue.ovn"]


@pytest.mark.parametrize("naming", NAMINGS)
@given(LABEL, POD, LABEL)
def test_a_namespace_has_its_own_names(naming: str, namespace: str, pod: str, other: str) -> None:
    """The name of a pod's port is of its namespace, and of no other."""
    name = logical_port_name(naming, namespace, pod)
    assert is_of_namespace(name, naming, namespace)
    assert is_of_namespace(name, naming, other) == (other == namespace)

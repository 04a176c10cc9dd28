"""MAC addresses as container, sidecar and node read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.pod.mac import derive_mac, is_unicast, six_octets


@pytest.mark.parametrize("written", ["02:00:00:00:00:0A", "02-00-00-00-00-0a", "0200.0000.000a"])
def test_one_form_for_all_spellings(written: str) -> None:
    """The spellings of Go's net.ParseMAC give one form."""
    assert six_octets(written) == "02:00:00:00:00:0a"


@pytest.mark.parametrize(
    ("mac", "can_be"), [("02:00:00:00:00:0a", True), ("00:00:00:00:00:00", False), ("01:00:5e:00:00:01", False), ("", False)]
)
def test_what_an_interface_can_have(mac: str, can_be: bool) -> None:
    """No group's address, and not the all-zero one, which a switch never learns."""
    assert is_unicast(mac) is can_be


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_a_derived_one_is_one_that_an_interface_can_have(names: list[str]) -> None:
    """Whatever the names are."""
    assert is_unicast(derive_mac(*names))

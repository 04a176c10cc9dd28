"""Which addresses are given out: the first free one of the subnet, and never one that something has or just had."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from userspace_cni.ovn.address_book import AddressBook, SwitchSubnet
from userspace_cni.ovn.logical_switches import FoundSwitch, read_subnets

FOUR = SwitchSubnet(ip_network("192.0.2.0/29"), ip_address("192.0.2.1"), ((ip_address("192.0.2.1"), ip_address("192.0.2.2")),))
SIX = SwitchSubnet(ip_network("2001:db8::/64"), ip_address("2001:db8::1"))


def a_book(*subnets: SwitchSubnet) -> AddressBook:
    book = AddressBook(held_s=60)
    book.set_switches({"s": subnets or (FOUR,)})
    return book


def given(book: AddressBook, port: str) -> list[str]:
    return [str(each) for each in book.give(port, "s")]


def test_the_first_free_address_of_each_family_is_given() -> None:
    """Router, reserved and broadcast addresses are not, and the order alone decides."""
    book = a_book(FOUR, SIX)
    assert given(book, "p1") == ["192.0.2.3/29", "2001:db8::2/64"]
    assert given(book, "p2") == ["192.0.2.4/29", "2001:db8::3/64"]


def test_a_full_subnet_gives_nothing() -> None:
    """Neither half of a pair: of a port with one family alone its pod would be told the wrong thing."""
    book = a_book(FOUR, SIX)
    assert all(given(book, f"p{number}") for number in range(4))
    assert given(book, "last") == []
    assert book.claim("other", [ip_address("2001:db8::6")]) == ""


def test_an_address_of_an_ended_pod_is_held() -> None:
    """For a minute others get the next one; then it is the first free one again."""
    book = a_book()
    given(book, "p1")
    book.release("p1", now=100.0)
    assert given(book, "p2") == ["192.0.2.4/29"]
    assert book.expire(159.9) == 160.0
    assert given(book, "p3") == ["192.0.2.5/29"]
    assert book.expire(160.0) == float("inf")
    assert given(book, "p4") == ["192.0.2.3/29"]


def test_a_port_that_came_back_keeps_its_address_beyond_the_hold() -> None:
    """What it claimed again is not freed when the hold of its former life ends."""
    book = a_book()
    given(book, "p1")
    book.release("p1", now=0.0)
    assert book.claim("p1", [ip_address("192.0.2.3")]) == ""
    book.expire(100.0)
    assert book.claim("p2", [ip_address("192.0.2.3")]) == "p1"


def test_a_new_pod_of_a_held_name_gets_another_address() -> None:
    """And the held one comes back in its time."""
    book = a_book()
    given(book, "p1")
    book.release("p1", now=0.0)
    assert given(book, "p1") == ["192.0.2.4/29"]
    book.expire(60.0)
    assert given(book, "p2") == ["192.0.2.3/29"]


def test_an_address_is_one_ports_alone() -> None:
    """A second claim names who has it, and changes nothing."""
    book = a_book()
    assert book.claim("p1", [ip_interface("192.0.2.5/29")]) == ""
    assert book.claim("p2", [ip_interface("192.0.2.4/29"), ip_interface("192.0.2.5/29")]) == "p1"
    assert book.claim("p3", [ip_address("192.0.2.4")]) == ""


def test_a_claim_replaces_the_former_one() -> None:
    """What a port no longer has is free at once: it was told so by its owner."""
    book = a_book()
    book.claim("p1", [ip_address("192.0.2.3")])
    book.claim("p1", [ip_address("192.0.2.6")])
    assert given(book, "p2") == ["192.0.2.3/29"]


@pytest.mark.parametrize("address", ["192.0.2.0", "192.0.2.1", "192.0.2.2", "192.0.2.7", "198.51.100.3", "2001:db8::3"])
def test_what_no_pod_can_have_does_not_fit(address: str) -> None:
    """The network's own, the router's, reserved ones, and those of other networks."""
    assert not a_book().fits("s", [ip_interface(address)])


def test_the_switch_of_addresses_is_found() -> None:
    """By all of them together; addresses of no switch have none."""
    book = a_book(FOUR, SIX)
    assert book.switch_of([ip_interface("192.0.2.5/29"), ip_interface("2001:db8::9/64")]) == "s"
    assert book.switch_of([ip_interface("198.51.100.3/24")]) == ""


def test_a_row_says_its_subnets() -> None:
    """Both families, excluded ranges and the noted gateway; what cannot be read counts as absent."""
    config = {"subnet": "10.0.0.0/24", "exclude_ips": "10.0.0.5..10.0.0.9 10.0.0.11 nonsense", "ipv6_prefix": "fd00:1::"}
    row = FoundSwitch("s", config, {"gateway_ip": "10.0.0.254/24"})
    book = AddressBook()
    book.set_switches({"s": read_subnets(row)})
    first = [str(each) for each in book.give("p1", "s")]
    assert first == ["10.0.0.3/24", "fd00:1::3/64"]
    assert [str(book.give(f"q{number}", "s")[0].ip) for number in range(3)] == ["10.0.0.4", "10.0.0.10", "10.0.0.12"]
    assert not book.fits("s", [ip_interface("10.0.0.254/24")])
    assert read_subnets(FoundSwitch("s", {"subnet": "10.0.0.0/99"}, {})) == ()


def test_a_cluster_is_filled_in_a_moment() -> None:
    """500 switches of 45 ports, released and filled again: all addresses differ."""
    book = AddressBook()
    book.set_switches(
        {f"n{each}": read_subnets(FoundSwitch("", {"subnet": f"10.{each >> 8}.{each & 255}.0/24"}, {})) for each in range(500)}
    )
    for _ in range(2):
        found = {book.give(f"{switch} {port}", f"n{switch}") for switch in range(500) for port in range(45)}
        assert len(found) == 22_500
        for switch in range(500):
            for port in range(45):
                book.release(f"{switch} {port}", 0.0)
        book.expire(60.0)

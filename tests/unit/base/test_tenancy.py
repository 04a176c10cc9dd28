"""The administrator's rules: how they are read, whom they apply to, and what they allow a namespace."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.errors import BridgeRefused, InvalidConfig, LogicalPortRefused, MirrorRefused
from userspace_cni.base.tenancy import (
    Bounds,
    Rule,
    bounds_of,
    read_rules,
    require_bridge_of_ovn,
    require_logical_switch,
    require_mirrors,
    require_opened,
    require_port,
    require_without_security,
)
from userspace_cni.base.vlans import VLAN_MAX, Vlan, list_carried_vlans, vlans_of

WHERE = "settings file /c.toml"
USUAL = ("/usual",)
MODES = ("", "access", "trunk", "native-tagged", "native-untagged", "dot1q-tunnel")


def rules(*tables: dict[str, Any]) -> tuple[Rule, ...]:
    """Rules as in the file; for every namespace that begins with "tenant-" unless they name others."""
    return read_rules([{"namespaces": ["tenant-*"], **table} for table in tables], WHERE)


def refusal(given_rules: tuple[Rule, ...], namespace: str, bridge: str, vlan: Vlan | None = None) -> str:
    """The refusal of such a port; "" when the namespace may have it."""
    try:
        require_port(given_rules, namespace, bridge, vlan or Vlan(100))
    except InvalidConfig as error:
        return str(error)
    return ""


def test_every_key() -> None:
    """A rule may hold every key; VLANs are numbers and ranges."""
    table = {"bridges": ["br-t*"], "vlans": [100, "200-299"], "directories": ["/var/lib/tenant"]}
    table |= {"mirrors": ["ids-*"], "mirror_outputs": ["ids-t"]}
    [rule] = rules(table | {"logical_switches": ["node", "t/*"], "without_port_security": ["node"]})
    vlans = (range(100, 101), range(200, 300))
    of_ovn = (("node", "t/*"), ("node",))
    assert rule == Rule(1, ("tenant-*",), ("br-t*",), vlans, ("/var/lib/tenant",), ("ids-*",), ("ids-t",), *of_ovn)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"bridge": ["br0"]}, ["unknown key 'bridge'", "['br0']", "namespaces, bridges, vlans, mirrors"]),
        ({"Bridges": ["br0"]}, ["unknown key 'Bridges'"]),
        ({"mirror": ["m"]}, ["unknown key 'mirror'", "mirrors, mirror_outputs"]),
        ({"mirrors": ["a b"]}, ["'mirrors' holds 'a b'", "name of a mirror"]),
        ({"mirror_outputs": "m"}, ["'mirror_outputs' is 'm'", "list"]),
        ({"bridges": "br0"}, ["'bridges' is 'br0'", "list"]),
        ({"bridges": ["br0", 7]}, ["'bridges' holds 7", "name of a bridge"]),
        ({"bridges": [""]}, ["'bridges' holds ''"]),
        ({"bridges": ["br-[ab"]}, ["'bridges' holds 'br-[ab'"]),
        ({"bridges": ["br 0"]}, ["'bridges' holds 'br 0'"]),
        ({"namespaces": [], "bridges": ["br0"]}, ["'namespaces' is missing or empty"]),
        ({"namespaces": "tenant-*", "bridges": ["br0"]}, ["'namespaces' is 'tenant-*'", "list"]),
        ({"namespaces": ["Tenant-*"], "bridges": ["br0"]}, ["'namespaces' holds 'Tenant-*'", "name of a namespace"]),
        ({"namespaces": ["tenant_*"], "bridges": ["br0"]}, ["'namespaces' holds 'tenant_*'"]),
        ({"namespaces": ["tenant-"], "bridges": ["br0"]}, ["'namespaces' holds 'tenant-'"]),
        ({"namespaces": ["-*"], "bridges": ["br0"]}, ["'namespaces' holds '-*'"]),
        ({"namespaces": ["[z-a]*"], "bridges": ["br0"]}, ["'namespaces' holds '[z-a]*'"]),
        ({"namespaces": ["a" * 64], "bridges": ["br0"]}, ["'namespaces' holds 'aaa"]),
        ({"bridges": ["br[!A-Za-z0-9_.-]"]}, ["'bridges' holds 'br[!A-Za-z0-9_.-]'"]),
        ({"bridges": ["br-of-the-tenant"]}, ["'bridges' holds 'br-of-the-tenant'"]),
        ({"bridges": ["br-of-the-tenan*?"]}, ["'bridges' holds 'br-of-the-tenan*?'"]),
        ({"vlans": [100]}, ["'vlans' is [100]", "'bridges' is None"]),
        ({"bridges": [], "vlans": [100]}, ["'bridges' is []"]),
        ({"bridges": ["br0"], "vlans": []}, ["'vlans' is []"]),
        ({"bridges": ["br0"], "vlans": [4095]}, ["'vlans' holds 4095", "0 to 4094"]),
        ({"bridges": ["br0"], "vlans": [-1]}, ["'vlans' holds -1"]),
        ({"bridges": ["br0"], "vlans": [True]}, ["'vlans' holds True"]),
        ({"bridges": ["br0"], "vlans": ["300-200"]}, ["'vlans' holds '300-200'"]),
        ({"bridges": ["br0"], "vlans": ["all"]}, ["'vlans' holds 'all'"]),
        ({"logical_switches": "node"}, ["'logical_switches' is 'node'", "list"]),
        ({"logical_switches": ["a b"]}, ["'logical_switches' holds 'a b'", "name of a logical switch"]),
        ({"without_port_security": [""]}, ["'without_port_security' holds ''", "name of a logical switch"]),
        ({"directories": ["var/lib"]}, ["'directories' holds 'var/lib'", "absolute path"]),
        ({"directories": ["/var/../etc"]}, ["'directories' holds '/var/../etc'"]),
        ({"directories": ["/var/.."]}, ["'directories' holds '/var/..'"]),
        ({"directories": ["/"]}, ["'directories' holds '/'"]),
        ({"directories": ["//"]}, ["'directories' holds '//'"]),
        ({"directories": [7]}, ["'directories' holds 7"]),
        ({}, ["it names no bridges and no directories"]),
    ],
)
def test_bad_rule(table: dict[str, Any], named: list[str]) -> None:
    """A rule that would leave open what it was written to close is refused
    with 7, naming file, number of the rule, key and value.
    """
    good = {"namespaces": ["*"], "bridges": ["br0"]}
    with pytest.raises(InvalidConfig) as refused:
        read_rules([good, {"namespaces": ["tenant-*"], **table}, good], WHERE)
    assert refused.value.code == 7
    assert [text for text in (WHERE, "[[rule]] number 2", *named) if text not in str(refused.value)] == []


@pytest.mark.parametrize("raw", [{}, {"namespaces": ["*"]}, "tenant", [1], [["a"]], 7])
def test_no_array_of_tables(raw: object) -> None:
    """`[rule]` for `[[rule]]` is refused, naming the file and how it is written."""
    with pytest.raises(InvalidConfig, match=r"/c\.toml: 'rule' is .*\[\[rule\]\]"):
        read_rules(raw, WHERE)


def test_no_namespace_is_bound_without_a_rule() -> None:
    """Without a rule, or without one that names bridges and the namespace, it may have any port on any bridge."""
    for given_rules in ((), rules({"namespaces": ["other"], "bridges": []}), rules({"directories": []})):
        assert refusal(given_rules, "tenant-a", "br-nic", Vlan()) == ""


@pytest.mark.parametrize(
    ("table", "opens"),
    [
        ({"bridges": ["br-net1"]}, True),
        ({"bridges": ["br-*"], "vlans": [100]}, True),
        ({"bridges": ["br-net2"]}, False),
        ({"namespaces": ["other"], "bridges": ["*"]}, False),
        ({"directories": ["/d"]}, False),
    ],
)
def test_bridge_of_a_provider_network(table: dict[str, Any], *, opens: bool) -> None:
    """A bridge of a provider network is closed to each namespace until a rule for it names the bridge."""
    require_opened((), "", "br-net1")
    if opens:
        require_opened(rules(table), "tenant-a", "br-net1")
        return
    with pytest.raises(InvalidConfig, match=r"'br-net1'.*'tenant-a'.*provider network"):
        require_opened(rules(table), "tenant-a", "br-net1")


def test_call_without_a_pod_is_not_bound() -> None:
    """Without a namespace the configuration is the administrator's own."""
    all_namespaces = rules({"namespaces": ["*"], "bridges": [], "directories": []})
    assert refusal(all_namespaces, "", "br0", Vlan()) == ""
    assert bounds_of(all_namespaces, "", USUAL) is None


def test_bridge_that_no_rule_names() -> None:
    """A bound namespace may use exactly the bridges that all its rules together name; the refusal names all that it needs."""
    given_rules = rules(
        {"bridges": ["br-tenant"]}, {"namespaces": ["*"], "bridges": ["br-all", "br-x?"]}, {"directories": ["/d"]}
    )
    for bridge in ("br-tenant", "br-all", "br-x1"):
        assert refusal(given_rules, "tenant-a", bridge) == ""
    said = refusal(given_rules, "tenant-a", "br-x12")
    named = ("'br-x12'", "'tenant-a'", "setting [[rule]] number 1 allows br-tenant", "[[rule]] number 2 allows br-all, br-x?")
    assert [text for text in named if text not in said] == []
    assert "number 3" not in said
    assert "'br-tenant'" in refusal(given_rules, "other", "br-tenant")


def test_rule_that_allows_nothing() -> None:
    """An empty list of bridges closes a namespace to which no other rule gives any."""
    assert "[[rule]] number 1 allows none" in refusal(rules({"bridges": []}), "tenant-a", "br0")
    assert refusal(rules({"bridges": []}, {"bridges": ["br0"]}), "tenant-a", "br0") == ""


def test_vlans_are_of_the_bridges_beside_them() -> None:
    """VLANs apply only to the bridges of their own rule; a rule without VLANs allows all."""
    given_rules = rules(
        {"bridges": ["br-a"], "vlans": [100, "200-299"]}, {"bridges": ["br-b"], "vlans": [300]}, {"bridges": ["br-c"]}
    )
    for bridge, vlan in (("br-a", 100), ("br-a", 299), ("br-b", 300), ("br-c", 4094)):
        assert refusal(given_rules, "tenant-a", bridge, Vlan(vlan)) == ""
    said = refusal(given_rules, "tenant-a", "br-a", Vlan(300))
    named = ("VLAN 300", "'br-a'", "'tenant-a'", "setting [[rule]] number 1 allows 100, 200-299")
    assert [text for text in named if text not in said] == []
    assert "number 2" not in said
    assert refusal(given_rules, "tenant-a", "br-c", Vlan()) == ""


def test_one_rule_has_all_vlans_of_a_port() -> None:
    """Two rules with a part of a port's VLANs each do not add up: each allows ports of its own VLANs."""
    halves = rules({"bridges": ["br"], "vlans": ["1-9"]}, {"bridges": ["br"], "vlans": ["10-19"]})
    assert refusal(halves, "tenant-a", "br", Vlan(trunks=(8, 9))) == refusal(halves, "tenant-a", "br", Vlan(12)) == ""
    assert "VLAN 9, 10" in refusal(halves, "tenant-a", "br", Vlan(trunks=(9, 10)))


def test_port_that_carries_all() -> None:
    """A port without VLANs carries all of them: only a rule without VLANs allows it, and the refusal says what to give it."""
    everything = rules({"bridges": ["br"], "vlans": ["0-4094"]})
    for vlan in (Vlan(), Vlan(mode="trunk"), Vlan(5, mode="trunk"), Vlan(5, mode="native-tagged"), Vlan(mode="native-untagged")):
        said = refusal(everything, "tenant-a", "br", vlan)
        assert [text for text in ("all VLANs", "'br'", "host.bridge.vlanId", "trunks", "number 1") if text not in said] == []
        assert refusal(rules({"bridges": ["br"]}), "tenant-a", "br", vlan) == ""
    assert refusal(everything, "tenant-a", "br", Vlan(trunks=tuple(range(4095)))) == ""


def test_many_vlans_are_shortened() -> None:
    """A refusal of a port with thousands of VLANs stays readable."""
    said = refusal(rules({"bridges": ["br"], "vlans": [1]}), "tenant-a", "br", Vlan(trunks=tuple(range(1, 4000))))
    assert "VLAN 1, 2, 3, 4, 5 and 3994 more" in said


@pytest.mark.parametrize(
    ("vlan", "expected"),
    [
        (Vlan(), None),
        (Vlan(7), {7}),
        (Vlan(7, (5,)), {7}),
        (Vlan(None, (0, 5)), {0, 5}),
        (Vlan(None, (), "access"), {0}),
        (Vlan(7, (), "access"), {7}),
        (Vlan(7, (), "trunk"), None),
        (Vlan(7, (5,), "trunk"), {5}),
        (Vlan(7, (), "native-tagged"), None),
        (Vlan(7, (5,), "native-tagged"), {5, 7}),
        (Vlan(None, (5,), "native-tagged"), {0, 5}),
        (Vlan(7, (5,), "native-untagged"), {5, 7}),
        (Vlan(7, (), "native-untagged"), None),
        (Vlan(7, (5,), "dot1q-tunnel"), {7}),
        (Vlan(None, (), "dot1q-tunnel"), {0}),
    ],
)
def test_what_a_port_carries(vlan: Vlan, expected: set[int] | None) -> None:
    """Every VLAN mode, with and without tag and trunks; tests/ovs compares with the switch."""
    assert list_carried_vlans(vlan) == expected


@given(
    tag=st.none() | st.integers(1, 4094),
    trunks=st.frozensets(st.integers(0, 4094), max_size=5),
    mode=st.sampled_from(MODES),
    allowed=st.lists(st.integers(0, 4094), min_size=1, max_size=5),
)
def test_allowed_is_what_it_carries(tag: int | None, trunks: frozenset[int], mode: str, allowed: list[int]) -> None:
    """Whatever the port: a rule with exactly what it carries allows it, one that lacks any of it does not."""
    vlan = Vlan(tag, tuple(sorted(trunks)), mode)
    carries = list_carried_vlans(vlan)
    some = rules({"bridges": ["br"], "vlans": allowed})
    assert (refusal(some, "tenant-a", "br", vlan) == "") == (carries is not None and carries <= set(allowed))
    if carries:
        assert refusal(rules({"bridges": ["br"], "vlans": sorted(carries)}), "tenant-a", "br", vlan) == ""


def mirror_refusal(given_rules: tuple[Rule, ...], namespace: str, mirrors: tuple[str, ...], *outputs: str) -> str:
    """The refusal of such roles in mirrors; "" when the namespace may have them."""
    try:
        require_mirrors(given_rules, namespace, mirrors, outputs)
    except MirrorRefused as error:
        return str(error)
    return ""


def test_an_output_needs_a_rule_and_a_source_none() -> None:
    """Without rules a pod is a source of any mirror and the output of none; a call without a pod is not bound."""
    assert mirror_refusal((), "tenant-a", ("ids",)) == ""
    assert mirror_refusal((), "", ("ids",), "ids") == ""
    assert "only a setting [[rule]] with 'mirror_outputs'" in mirror_refusal((), "tenant-a", (), "ids")
    others = rules({"bridges": ["*"]}, {"namespaces": ["x"], "mirror_outputs": ["*"]})
    assert "'mirrorOutput' is 'ids'" in mirror_refusal(others, "tenant-a", (), "ids")
    assert mirror_refusal(others, "x", ("any",), "ids") == ""


def test_rules_of_mirrors() -> None:
    """A namespace may have only the sources and outputs that its rules name; the refusal names the rule."""
    given_rules = rules({"mirrors": ["t-*"]}, {"mirror_outputs": ["t-ids"]}, {"namespaces": ["*"], "mirrors": ["all"]})
    assert mirror_refusal(given_rules, "tenant-a", ("t-ids", "all"), "t-ids") == ""
    assert "[[rule]] number 1 allows t-*; setting [[rule]] number 3 allows all" in mirror_refusal(
        given_rules, "tenant-a", ("ids",)
    )
    assert "[[rule]] number 2 allows t-ids" in mirror_refusal(given_rules, "tenant-a", (), "t-other")
    assert "'mirrorOutput' is 't-other'" in mirror_refusal(given_rules, "tenant-a", (), "t-ids", "t-other")
    assert mirror_refusal(given_rules, "x", ("t-ids",))
    assert mirror_refusal(rules({"mirrors": []}), "tenant-a", ("ids",))


LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)


@given(namespace=LABELS, other=LABELS, bridge=LABELS)
def test_names_are_patterns_of_the_whole_name(namespace: str, other: str, bridge: str) -> None:
    """A name without a wildcard means only itself; with one it is a case-sensitive pattern of the whole name."""
    exact = rules({"namespaces": [namespace], "bridges": [bridge]})
    assert refusal(exact, namespace, bridge) == ""
    assert (refusal(exact, other, f"{bridge}x") == "") == (other != namespace)
    assert refusal(exact, namespace, f"x{bridge}")
    assert (refusal(exact, namespace, bridge.upper()) == "") == (bridge.upper() == bridge)
    prefix = rules({"namespaces": [f"{namespace}*"], "bridges": [f"{bridge}?"]})
    assert refusal(prefix, namespace + other, f"{bridge}x") == ""
    assert refusal(prefix, namespace + other, bridge)


def test_directories_of_a_namespace() -> None:
    """A namespace whose rules name directories may use only these, instead of the setting's; without any it has the setting's."""
    given_rules = rules({"directories": ["/a", "/b"]}, {"namespaces": ["*"], "directories": ["/b", "/c"]}, {"bridges": ["br"]})
    assert bounds_of(given_rules, "tenant-a", USUAL) == Bounds(
        "tenant-a", ("/a", "/b", "/c"), "setting [[rule]] number 1 and 2, in place of shared_dirs"
    )
    assert bounds_of(given_rules, "x", USUAL) == Bounds("x", ("/b", "/c"), "setting [[rule]] number 2, in place of shared_dirs")
    assert bounds_of(given_rules[2:], "tenant-a", USUAL) == Bounds("tenant-a", USUAL, "setting shared_dirs")
    assert bounds_of(rules({"directories": []}), "tenant-a", USUAL) == Bounds(
        "tenant-a", (), "setting [[rule]] number 1, in place of shared_dirs"
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_anything_is_read_or_refused(raw: Any) -> None:
    """Any content of the file is a rule for a namespace, or an error of ours."""
    for table in ({"namespaces": ["*"], "bridges": raw}, {"namespaces": raw, "directories": []}, {"directories": raw}, raw):
        with suppress(InvalidConfig):
            assert read_rules([table], WHERE)[0].namespaces


@given(st.lists(st.tuples(st.integers(0, VLAN_MAX), st.integers(0, VLAN_MAX)), max_size=6))
def test_vlans_of_ranges(bounds: list[tuple[int, int]]) -> None:
    """All VLANs of all ranges, each once and in order."""
    ranges = [range(min(pair), max(pair) + 1) for pair in bounds]
    assert vlans_of(ranges) == tuple(sorted({vlan for each in ranges for vlan in each}))


def switch_refusal(given_rules: tuple[Rule, ...], namespace: str, switch: str) -> str:
    """What is said of a logical port of that switch; "" when the namespace may have it."""
    try:
        require_logical_switch(given_rules, namespace, switch)
    except LogicalPortRefused as error:
        return str(error)
    return ""


def test_logical_switches() -> None:
    """Without a rule a namespace has the node's own switch alone; with one, what its rules name; without a pod, any."""
    opened = rules({"logical_switches": ["node", "tenants-*"]}, {"logical_switches": ["dmz"]})
    closed = rules({"logical_switches": []})
    assert [switch_refusal((), "tenant-a", each) == "" for each in ("node", "dmz", "")] == [True, False, False]
    assert [switch_refusal(opened, "tenant-a", each) == "" for each in ("node", "tenants-1", "dmz", "other", "")] == [
        *(True, True, True, False, False)
    ]
    assert "number 1 allows node, tenants-*; setting [[rule]] number 2 allows dmz" in switch_refusal(opened, "tenant-a", "other")
    assert "'node', which pods of namespace 'tenant-a' cannot have" in switch_refusal(closed, "tenant-a", "node")
    assert [switch_refusal(closed, "", each) for each in ("node", "dmz", "")] == ["", "", ""]


def test_a_logical_port_of_another_namespace() -> None:
    """Only a rule that opens every switch lets a pod name one: the switch of that port is not known on the node."""
    every = rules({"logical_switches": ["*"]})
    assert switch_refusal(every, "tenant-a", "") == ""
    refused = switch_refusal((), "tenant-a", "")
    assert "not named after a pod of its own namespace" in refused
    assert "'logical_switches' opens others" in refused


def test_ports_without_port_security() -> None:
    """Only a rule that names the switch allows one, on whatever switch; without a pod there is no bound."""
    given = rules({"without_port_security": ["node"]}, {"logical_switches": ["*"]})
    require_without_security(given, "tenant-a", "node", "'ovn.portSecurity' is false")
    require_without_security((), "", "node", "'ovn.portSecurity' is false")
    with pytest.raises(LogicalPortRefused, match=r"'addresses' is 'unknown'.* of logical switch 'dmz'.*number 1 allows node"):
        require_without_security(given, "tenant-a", "dmz", "'addresses' is 'unknown'")
    with pytest.raises(LogicalPortRefused, match=r"only a setting.*'without_port_security' allows it"):
        require_without_security((), "tenant-a", "node", "'addresses' is 'unknown'")


def test_the_bridge_of_ovn_as_a_bridge() -> None:
    """A port that is no logical port is there only by a rule that names the bridge, or without a pod."""
    with pytest.raises(BridgeRefused, match="which is OVN's and forwards nothing"):
        require_bridge_of_ovn(rules({"mirrors": ["*"]}), "tenant-a", "br-int")
    require_bridge_of_ovn(rules({"bridges": ["br-*"]}), "tenant-a", "br-int")
    require_bridge_of_ovn((), "", "br-int")

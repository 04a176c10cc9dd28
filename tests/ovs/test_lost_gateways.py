"""Gateways whose record was lost: what carries our protocol number, or our table's name, is recorded again, or goes with them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.cni.spec import switch_of
from tests.lab.network.gateways import BOTH_HOLD, GATEWAY, OUTSIDE, Site, everything
from tests.lab.node.links import inside
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.specs import Specs
from userspace_cni.attachment.steps import node_marks
from userspace_cni.base.gateways import EgressGateway, StaticRoute
from userspace_cni.base.settings import load
from userspace_cni.network.spec_sources import SpecSources
from userspace_cni.node.local_node import LocalNode

FAR = "10.57.0.0/24"
FULL = replace(
    GATEWAY,
    clamp_mss=True,
    not_masqueraded=("198.51.100.0/24", "203.0.113.7/32"),
    routes=(StaticRoute(FAR, OUTSIDE[0]), StaticRoute("10.58.0.0/24", "10.56.0.9"), StaticRoute("fd00:57::/64", OUTSIDE[1])),
    egress_gateway=EgressGateway(OUTSIDE[0], 1042, 1042),
)
OTHER = replace(GATEWAY, port="other-gw", bridge="br-other", addresses=("10.59.0.1/24",))


def lose(node: Node, *names: str) -> None:
    """Remove the records of these specs, of all without a name."""
    found = list((Path(load(node.environ).state_dir) / "node").glob("*.json"))
    chosen = [path for path in found if not names or path.stem.endswith(names)]
    assert len(chosen) == (len(names) or len(found)) > 0
    for path in chosen:
        path.unlink()


def met_by_settings(node: Node, tmp_path: Path, text: str) -> list[str]:
    """Bring the node to what a settings file of that text asks for; the problems."""
    file = tmp_path / "network.toml"
    file.write_text(text)
    with closing(LocalNode(load(node.environ), {}, resident=True)) as local:
        specs, complete = SpecSources(local, {"USERSPACE_CNI_CONFIG": str(file)}).specs()
        return [each.problem for each in Specs(local).reconcile(specs, complete, now=True) if each.problem]


def test_the_spec_stands(node: Node, site: Site) -> None:
    """What it has is its own again, and nothing is refused for it; by the next record all of it goes."""
    bare = everything(site.place)
    assert site.keep(FULL) == BOTH_HOLD
    whole = everything(site.place)
    before = {record.key: sorted(step.kind for step in record.steps) for record in site.local.store.journal.node_records()}
    lose(node)
    assert site.keep(FULL) == BOTH_HOLD
    assert everything(site.place) == whole
    records = site.local.store.journal.node_records()
    assert {record.key: sorted(step.kind for step in record.steps) for record in records} == before
    assert site.keep() == {}
    wait_until(lambda: everything(site.place) == bare, what="the node as it was before")


def test_the_spec_has_gone(node: Node, site: Site) -> None:
    """While a source is not completely known all of it stays; then its routes and rules go with its port."""
    bare = everything(site.place)
    assert site.keep(FULL) == BOTH_HOLD
    whole = everything(site.place)
    lose(node, FULL.port)
    for _ in range(2):
        assert site.keep(complete=False) == BOTH_HOLD
        assert everything(site.place) == whole
    assert site.keep() == {}
    wait_until(lambda: everything(site.place) == bare, what="the node as it was before")


def test_two_gateways_that_stand(node: Node, site: Site) -> None:
    """Of two that were lost each gets what is its own: neither is refused, and neither takes the other's."""
    other = replace(
        OTHER, routes=(StaticRoute("10.60.0.0/24", OUTSIDE[0]),), egress_gateway=EgressGateway(OUTSIDE[0], 1043, 1043)
    )
    holding = {**BOTH_HOLD, "other-gw": ""}
    assert site.keep(FULL, other) == holding
    whole = everything(site.place)
    lose(node)
    assert site.keep(FULL, other) == holding
    assert everything(site.place) == whole
    assert site.keep(other) == {"other-gw": "", "all": ""}
    assert "10.56.0" not in str(everything(site.place))
    assert [FAR in line for line in everything(site.place)["routes"]].count(True) == 0


def test_beside_another_installation(node: Node, site: Site) -> None:
    """A route by a link that is not the gateway's may be that of another installation's gateway, and stays; what is at its own
    link goes."""
    bridge = "add-br br-theirs -- set Bridge br-theirs datapath_type=netdev -- add-port br-theirs their-gw"
    marks = node_marks("gateway", "their-gw", "another") | {"owner": "userspace-cni"}
    ids = [f'external_ids:{key}="{value}"' for key, value in marks.items()]
    kind = "-- set Interface their-gw type=internal"
    switch_of(node).vsctl(*bridge.split(), *kind.split(), "--", "set", "Port", "their-gw", *ids)
    try:
        assert site.keep(FULL) == BOTH_HOLD
        lose(node, FULL.port)
        assert site.keep() == {}
        left = everything(site.place)
        routes = {line.split()[0] for each in ("routes", "routes of IPv6") for line in left[each] if "proto 149" in line}
        assert routes == {FAR, "fd00:57::/64"}
        assert "10.56.0" not in str(left)
        assert "1042" not in str(left)
    finally:
        inside(site.place, "ip", "route", "flush", "proto", "149")
        inside(site.place, "ip", "-6", "route", "flush", "proto", "149")
        switch_of(node).vsctl("del-br", "br-theirs")


def test_the_table_of_all_gateways(node: Node, site: Site, tmp_path: Path) -> None:
    """What it does for a gateway whose spec is not known now stays, though only the table tells of it; without any gateway the
    table goes, as soon as all specs are known."""
    assert site.keep(FULL, OTHER) == {**BOTH_HOLD, "other-gw": ""}
    whole = everything(site.place)
    lose(node, "all")
    assert site.keep(OTHER, complete=False) == {"other-gw": "", "br-test-gw": "", "all": ""}
    assert everything(site.place) == whole
    lose(node)
    assert met_by_settings(node, tmp_path, "") == []
    assert everything(site.place)["nftables"] == []
    assert site.local.store.journal.node_records() == []

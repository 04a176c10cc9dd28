"""`ovn init-gateway` and `ovn remove-gateway` with OVN's northbound database served without OVN, and without a switch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.lab.ovn.database import NorthboundDatabase
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.base.deadline import Deadline
from userspace_cni.cli.main import userspace_cni
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway
from userspace_cni.ovn.gateways.gateway_setup import WishedGateway, init_gateway
from userspace_cni.ovn.northbound import NorthboundClient, northbound_client
from userspace_cni.ovn.ovn_facts import look_north
from userspace_cni.ovn.plan_writing import WriteMode

CLUSTER = ("init-cluster", "--cluster-subnet", "10.244.0.0/16,fd00:10:244::/56")
OUTSIDE = ("--ip", "192.0.2.10/24,2001:db8::10/64", "--next-hop", "192.0.2.1,fe80::1")
GATEWAY = ("init-gateway", "--no-chassis", "--node", "n1", "--chassis", "c1", "--bridge", "br-ex", *OUTSIDE)
OTHER = ("init-gateway", "--no-chassis", "--node", "n2", "--chassis", "c2", "--bridge", "br-ex")
OTHERS = (*OTHER, "--ip", "192.0.2.11/24,2001:db8::11/64", "--next-hop", "192.0.2.1,2001:db8::1")
SHARED = ("init-gateway", "--no-chassis", "--distributed", "--chassis", "c1,c2", "--network", "physnet")
DISTRIBUTED = (*SHARED, "--ip", "192.0.2.20/24", "--next-hop", "192.0.2.1")
_OF_ROUTER = ("Logical_Router_Port", "Logical_Router_Static_Route", "Logical_Router_Policy", "NAT")
TABLES = ("Logical_Router", *_OF_ROUTER, "Logical_Switch", "Logical_Switch_Port", "HA_Chassis_Group", "HA_Chassis")
Run = Callable[..., Result]


@pytest.fixture
def run(database: NorthboundDatabase, tmp_path: Path) -> Run:
    """Runs a command of `ovn` on a cluster with two nodes; it has to end with `code`."""
    settings = tmp_path / "config.toml"
    settings.touch()

    def invoke(*arguments: str, code: int = 0) -> Result:
        env = {**environ(tmp_path), "USERSPACE_CNI_OVN_NB": database.remote("unix"), "USERSPACE_CNI_CONFIG": str(settings)}
        done = CliRunner(env=env).invoke(userspace_cni, ["ovn", *arguments])
        assert done.exit_code == code, done.output
        return done

    invoke(*CLUSTER)
    for number in (1, 2):
        subnet = f"10.244.{number}.0/24,fd00:10:244:{number}::/64"
        invoke("init-node", "--no-chassis", "--node", f"n{number}", "--subnet", subnet)
    return invoke


def everything(database: NorthboundDatabase) -> str:
    """All rows."""
    return database.nbctl("--no-leader-only", *" -- ".join(f"list {each}" for each in TABLES).split())


def rows(database: NorthboundDatabase, table: str, *columns: str) -> list[list[Any]]:
    """The columns of all rows of the table."""
    told = json.loads(database.nbctl("--format=json", f"--columns={','.join(columns)}", "list", table))
    return sorted(told["data"])


def test_a_gateway_of_a_node_and_its_end(database: NorthboundDatabase, run: Run) -> None:
    """A dry run shows what the command then writes; a second run writes nothing; without it all is as it was before."""
    before = everything(database)
    planned = json.loads(run(*GATEWAY, "--dry-run", "--json").stdout)
    assert everything(database) == before
    done = json.loads(run(*GATEWAY, "--json").stdout)
    assert (done["changes"], done["gateway"], done["external_ids"]) == (planned["changes"], "n1", {})
    assert rows(database, "NAT", "external_ip", "logical_ip") == [
        ["192.0.2.10", "10.244.0.0/16"],
        ["2001:db8::10", "fd00:10:244::/56"],
    ]
    assert database.nbctl("get", "Logical_Router", "GR_n1", "external_ids:physical_ips").strip('"') == "192.0.2.10,2001:db8::10"
    assert database.nbctl("get", "Logical_Router", "GR_n1", "options:chassis") == "c1"
    assert database.nbctl("get", "Logical_Switch_Port", "br-ex_n1", "options:network_name") == "br-ex"
    after = everything(database)
    assert json.loads(run(*GATEWAY, "--json").stdout)["changes"] == []
    assert everything(database) == after
    changed = json.loads(run(*GATEWAY, "--no-snat", "--json").stdout)["changes"]
    assert sorted({(each["change"], each["table"]) for each in changed}) == [("delete", "NAT"), ("update", "Logical_Router")]
    run("remove-gateway", "--no-chassis", "--node", "n1")
    assert everything(database) == before
    assert json.loads(run("remove-gateway", "--no-chassis", "--node", "n1", "--json").stdout)["changes"] == []


def test_where_pods_leave(database: NorthboundDatabase, run: Run) -> None:
    """By their node's gateway; those of other nodes by the first, or by the one that was made the default."""

    def defaults() -> dict[str, str]:
        found = rows(database, "Logical_Router_Static_Route", "ip_prefix", "nexthop", "external_ids")
        return {prefix: hop for prefix, hop, ids in found if ["scope", "gateways"] in ids[1]}

    def join(name: str) -> list[str]:
        networks = json.loads(database.nbctl("get", "Logical_Router_Port", f"rtoj-GR_{name}", "networks"))
        return [each.partition("/")[0] for each in networks]

    def ways() -> dict[str, str]:
        return {match.split()[2]: hop for match, hop in rows(database, "Logical_Router_Policy", "match", "nexthops")}

    run(*GATEWAY)
    assert [*defaults().values()] == join("n1")
    run(*OTHERS, "--source-subnets", "10.244.7.0/24")
    assert [*defaults().values()] == join("n1")
    first, second = join("n1"), join("n2")
    assert not {*first} & {*second}
    assert ways() == {
        "10.244.1.0/24": first[0],
        "fd00:10:244:1::/64": first[1],
        "10.244.2.0/24": second[0],
        "fd00:10:244:2::/64": second[1],
        "10.244.7.0/24": second[0],
    }
    run(*OTHERS, "--default")
    assert [*defaults().values()] == second
    assert "10.244.7.0/24" not in ways()
    run("remove-gateway", "--no-chassis", "--node", "n2")
    assert [*defaults().values()] == first
    run(*GATEWAY)
    run(*DISTRIBUTED)
    assert json.loads(run(*DISTRIBUTED, "--json").stdout)["changes"] == []
    assert defaults() == {"0.0.0.0/0": join("distributed")[0], "::/0": first[1]}
    group = database.nbctl("get", "Logical_Router_Port", "rtoe-GR_distributed", "ha_chassis_group")
    assert group == database.nbctl("--bare", "--columns=_uuid", "find", "HA_Chassis_Group", "name=GR_distributed")
    assert rows(database, "HA_Chassis", "chassis_name", "priority") == [["c1", 100], ["c2", 99]]
    run("remove-gateway", "--no-chassis", "--distributed")
    assert rows(database, "HA_Chassis_Group", "name") == []


def test_a_lost_gateway_gets_its_address_again(database: NorthboundDatabase, run: Run) -> None:
    """It follows from the name, and is another where a port of others has it."""
    run(*GATEWAY)
    networks = json.loads(database.nbctl("get", "Logical_Router_Port", "rtoj-GR_n1", "networks"))
    run("remove-gateway", "--no-chassis", "--node", "n1")
    run(*GATEWAY)
    assert json.loads(database.nbctl("get", "Logical_Router_Port", "rtoj-GR_n1", "networks")) == networks
    run("remove-gateway", "--no-chassis", "--node", "n1")
    database.nbctl("lr-add", "theirs", "--", "lrp-add", "theirs", "p", "02:00:00:00:00:01", networks[0])
    run(*GATEWAY)
    assert json.loads(database.nbctl("get", "Logical_Router_Port", "rtoj-GR_n1", "networks"))[0] != networks[0]


def test_two_gateways_at_once_get_different_addresses(database: NorthboundDatabase, run: Run) -> None:
    """On a switch `join` that has few: the one that comes later looks again."""
    run("init-cluster", "--cluster-subnet", "10.244.0.0/16,fd00:10:244::/56", "--join-subnet", "100.64.0.0/29,fd98::/125")
    clients = [northbound_client(database.remote("unix")) for _ in range(2)]
    hops = (ip_address("192.0.2.1"), ip_address("2001:db8::1"))
    errors: list[Exception] = []

    def make(client: NorthboundClient, barrier: threading.Barrier, number: int) -> None:
        outside = (ip_interface(f"192.0.2.{number}0/24"), ip_interface(f"2001:db8::{number}0/64"))
        asked = AskedGateway(f"n{number}", (f"c{number}",), outside, hops, "br-ex")
        client.connect(Deadline.after(60))
        barrier.wait(60)
        try:
            init_gateway(client, WishedGateway(asked), WriteMode(Deadline.after(60)))
        except Exception as error:
            errors.append(error)

    for _ in range(10):
        barrier = threading.Barrier(2)
        threads = [threading.Thread(target=make, args=(client, barrier, n)) for n, client in enumerate(clients, 1)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert not errors
        found = [network for (networks,) in rows(database, "Logical_Router_Port", "networks") for network in networks[1]]
        joined = [each for each in found if each.startswith(("100.64.0.", "fd98:"))]
        assert len(set(joined)) == len(joined) == 6
        for number in (1, 2):
            run("remove-gateway", "--no-chassis", "--node", f"n{number}")
    for client in clients:
        client.close()


def test_rows_of_others_stand_against_it(database: NorthboundDatabase, run: Run) -> None:
    """A router of then, and a default route: they are told, and become ours when asked for; no second row says the same."""
    database.nbctl("lr-route-add", "ovn_cluster_router", "0.0.0.0/0", "100.64.1.2")
    refused = run(*GATEWAY, code=1).output
    assert "is there and is not ours" in refused
    database.nbctl("lr-add", "GR_n1", "--", "lr-nat-add", "GR_n1", "snat", "192.0.2.9", "10.244.0.0/16")
    run(*GATEWAY, "--adopt")
    assert rows(database, "NAT", "external_ip", "logical_ip") == [
        ["192.0.2.10", "10.244.0.0/16"],
        ["2001:db8::10", "fd00:10:244::/56"],
    ]
    found = [prefix for prefix, ids in rows(database, "Logical_Router_Static_Route", "ip_prefix", "external_ids")]
    assert sorted(found).count("0.0.0.0/0") == 2  # the cluster's router and the gateway's
    assert json.loads(run(*GATEWAY, "--json").stdout)["changes"] == []


def test_the_end_of_nodes_and_cluster(database: NorthboundDatabase, run: Run) -> None:
    """In the other order than they were made; what others need stays, and is named. Nothing is left of them."""
    run(*GATEWAY)
    assert "Logical_Router ovn_cluster_router would be removed with" in run("remove-cluster", code=1).output
    assert "remove-gateway" in run("remove-node", "--no-chassis", "--node", "n1", code=1).output
    run("remove-gateway", "--no-chassis", "--node", "n1")
    database.nbctl("lsp-add", "n1", "pod")
    assert "Logical_Switch n1 would be removed with pod" in run("remove-node", "--no-chassis", "--node", "n1", code=1).output
    database.nbctl("lsp-del", "pod")
    assert json.loads(run("remove-node", "--no-chassis", "--node", "n1", "--dry-run", "--json").stdout)["changes"]
    for node in ("n1", "n2"):
        run("remove-node", "--no-chassis", "--node", node)
    assert json.loads(run("remove-node", "--no-chassis", "--node", "n1", "--json").stdout)["changes"] == []
    database.nbctl("lb-add", "theirs", "10.96.0.1:80", "10.244.1.9:80")
    row = database.nbctl("--bare", "--columns=_uuid", "list", "Load_Balancer")
    database.nbctl("add", "Load_Balancer_Group", "cluster-load-balancers", "load_balancer", row)
    assert "would be removed with theirs" in run("remove-cluster", code=1).output
    database.nbctl("lb-del", "theirs")
    run("remove-cluster")
    assert not everything(database)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ip", "192.0.2.10"), "an address with its prefix length"),
        (("--ip", "10.244.3.3/24", "--next-hop", "10.244.3.1"), "overlaps 10.244.0.0/16 of the cluster"),
        (("--ip", "100.64.3.3/24", "--next-hop", "100.64.3.1"), "of the switch join"),
        (("--ip", "192.0.2.255/24"), "broadcast"),
        (("--ip", "fe80::2/64"), "no other network reaches"),
        (("--ip", "192.0.2.10/24,192.0.2.11/24"), "one address of IPv4 and one of IPv6"),
        (("--ip", "192.0.2.10/24"), "one next hop for each"),
        (("--next-hop", "192.0.3.1,fe80::1"), "is not in 192.0.2.0/24"),
        (("--next-hop", "192.0.2.10,fe80::1"), "the gateway's own address"),
        (("--next-hop", "x"), "it must be an address"),
        (("--source-subnets", "10.1.0.0/16"), "no part of the cluster's"),
        (("--source-subnets", "10.244.1.1/24"), "give the subnet"),
        (("--network", "phys net"), "it must be of letters"),
        (("--vlan", "4095"), "from 1 to 4094"),
        (("--mtu", "100"), "from 1280"),
        (("--chassis", "a b"), "names of chassis"),
        (("--chassis", "a,b"), "only a gateway with --distributed"),
        (("--shared",), "--shared needs the bridge's MAC"),
        (("--distributed",), "--node does not go with it"),
        (("--node", "distributed"), "can have no gateway"),
        (("--node", "n_1"), "RFC 1123"),
        (("--chassis", ""), "--no-chassis needs --chassis"),
        (("--bridge", ""), "--bridge"),
    ],
)
def test_what_cannot_be(run: Run, database: NorthboundDatabase, options: tuple[str, ...], said: str) -> None:
    """Each option is judged before anything is written, and named."""
    before = everything(database)
    assert said in run(*GATEWAY, *options, code=2).output
    assert everything(database) == before


def test_what_is_lacking(run: Run, database: NorthboundDatabase) -> None:
    """A node, an address that is free, a group of load balancers: each is told with what makes it."""
    assert "there is no node n3" in run(*GATEWAY, "--node", "n3", code=1).output
    run(*GATEWAY, "--source-subnets", "10.244.9.0/24")
    taken = run(*OTHER, *OUTSIDE, code=2).output
    assert "which gateway n1 has" in taken
    assert "10.244.9.0/24, which gateway n1 has" in run(*OTHERS, "--source-subnets", "10.244.9.0/24", code=2).output
    run("remove-gateway", "--no-chassis", "--node", "n1")
    for switch in ("n1", "n2"):
        database.nbctl("clear", "Logical_Switch", switch, "load_balancer_group")
    database.nbctl("destroy", "Load_Balancer_Group", "gateway-load-balancers")
    assert "init-cluster" in run(*GATEWAY, code=1).output


def test_what_differs_is_found(run: Run, database: NorthboundDatabase) -> None:
    """A look names each row that is not as it was asked for, and the same command writes it again."""
    run(*GATEWAY)
    database.nbctl("lr-nat-del", "GR_n1", "snat", "10.244.0.0/16", "--", "lrp-del", "rtoj-GR_n1")
    database.nbctl("lr-route-del", "ovn_cluster_router", "0.0.0.0/0")
    found = differing(database)
    assert found == {
        ("gateway n1", "insert", "NAT"),
        ("gateway n1", "insert", "Logical_Router_Port"),
        ("gateways", "insert", "Logical_Router_Static_Route"),
    }
    run(*GATEWAY)
    assert differing(database) == set()


def differing(database: NorthboundDatabase) -> set[tuple[str, str, str]]:
    """By mark: kind of change and table of each row of gateways that differs."""
    client = northbound_client(database.remote("unix"))
    try:
        north = client.read(look_north, frozenset(), "looking", Deadline.after(60))
    finally:
        client.close()
    return {
        (scope, each.kind, each.key.table)
        for scope, changes in north.differences.items()
        for each in changes.rows
        if scope.startswith("gateway")
    }

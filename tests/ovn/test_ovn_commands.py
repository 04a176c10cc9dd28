"""`userspace-cni ovn` with OVN's northbound database served without OVN, and without a switch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.lab.ovn.database import NorthboundDatabase
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig
from userspace_cni.cli.main import userspace_cni
from userspace_cni.ovn.free_subnets import AskedFree
from userspace_cni.ovn.northbound import NorthboundClient, northbound_client
from userspace_cni.ovn.plan_writing import WriteMode
from userspace_cni.ovn.setting_up import AskedNode, init_node
from userspace_cni.ovn.topology_values import subnets_of

CLUSTER = ("init-cluster", "--cluster-subnet", "10.244.0.0/16,fd00:10:244::/56")
NODE = ("init-node", "--no-chassis", "--node", "n1", "--subnet", "10.244.1.0/24,fd00:10:244:1::/64")


Run = Callable[..., Result]


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """The node's own settings file."""
    path = tmp_path / "config.toml"
    path.write_text('log_level = "warning"\n')
    return path


@pytest.fixture
def run(database: NorthboundDatabase, tmp_path: Path, settings: Path) -> Run:
    """Runs a command of `ovn`; it has to end with `code`."""

    def invoke(*arguments: str, code: int = 0) -> Result:
        env = {**environ(tmp_path), "USERSPACE_CNI_OVN_NB": database.remote("unix"), "USERSPACE_CNI_CONFIG": str(settings)}
        done = CliRunner(env=env).invoke(userspace_cni, ["ovn", *arguments])
        assert done.exit_code == code, done.output
        return done

    return invoke


def test_from_nothing_to_a_node(database: NorthboundDatabase, run: Run) -> None:
    """A dry run shows what the command then writes; a second run writes nothing; a changed option changes its rows alone."""
    planned = json.loads(run(*CLUSTER, "--dry-run", "--json").stdout)
    assert database.nbctl("lr-list") == ""
    done = json.loads(run(*CLUSTER, "--json").stdout)
    assert done["changes"] == planned["changes"]
    assert not done["dry_run"]
    run(*NODE)
    shown = database.nbctl("show")
    for text in ("rtoj-ovn_cluster_router", "rtos-n1", 'addresses: ["0a:58:0a:f4:01:02 10.244.1.2 fd00:10:244:1::2"]'):
        assert text in shown
    assert "10.244.1.2" in database.nbctl("get", "Logical_Switch", "n1", "other_config:exclude_ips")
    before = database.nbctl(
        "--no-leader-only", "list", "Logical_Switch", "--", "list", "Logical_Router", "--", "list", "NB_Global"
    )
    for command in (CLUSTER, NODE):
        assert json.loads(run(*command, "--json").stdout)["changes"] == []
    assert before == database.nbctl(
        "--no-leader-only", "list", "Logical_Switch", "--", "list", "Logical_Router", "--", "list", "NB_Global"
    )
    moved = json.loads(run(*CLUSTER, "--join-subnet", "100.65.0.0/16", "--json").stdout)["changes"]
    assert [(each["change"], each["name"]) for each in moved] == [("update", "rtoj-ovn_cluster_router")]


def test_what_stands_against_a_node(database: NorthboundDatabase, run: Run) -> None:
    """Each is told with its exit code, and nothing is written."""
    assert "there is no router of a cluster" in run(*NODE, code=1).output
    run(*CLUSTER)
    run(*NODE)
    taken = run("init-node", "--no-chassis", "--node", "n2", "--subnet", "10.244.1.0/25,fd00:10:244:2::/64", code=2)
    assert "10.244.1.0/25, which overlaps 10.244.1.0/24 of node n1" in taken.output
    assert "'n1'" in run("init-node", "--no-chassis", "--node", "N1", code=1).output
    run("init-cluster", "--cluster-subnet", "10.1.0.0/16", code=2)
    other = run(*CLUSTER, "--router", "other", code=1).output
    assert "Logical_Router ovn_cluster_router would be removed with rtos-n1" in other
    assert database.nbctl("lr-list").split()[1] == "(ovn_cluster_router)"
    database.stop()
    assert "nb.sock" in run(*CLUSTER, code=3).output


def test_a_node_whose_rows_were_lost_gets_its_subnet_again(database: NorthboundDatabase, run: Run, settings: Path) -> None:
    """Also where it asks for any that is free: its pods have addresses of the former one, which its settings file names."""
    former = '[[gateway]]\nbridge = "br-int"\nport = "k8s-n1"\nlogical_port = "k8s-n1"\n'
    settings.write_text(f'{former}addresses = ["10.244.7.2/24", "fd00:10:244:7::2/64"]\n')
    run(*CLUSTER)
    for node, subnet in (("n2", "10.244.0.0/24"), ("n1", "10.244.7.0/24")):
        run("init-node", "--no-chassis", "--node", node, "--subnet", "/24,/64")
        assert database.nbctl("get", "Logical_Switch", node, "other_config:subnet").strip('"') == subnet


def test_two_nodes_at_once_get_different_free_subnets(database: NorthboundDatabase, run: Run) -> None:
    """Each that asks for the length alone; the one that comes later looks again."""
    run(*CLUSTER)
    clients = [northbound_client(database.remote("unix")) for _ in range(2)]
    found: list[str] = []

    def init(client: NorthboundClient, barrier: threading.Barrier, name: str) -> None:
        client.connect(Deadline.after(60))
        barrier.wait(60)
        node, _ = init_node(client, AskedNode(name, (), free=AskedFree((24, 64))), WriteMode(Deadline.after(60)))
        found.append(str(node.subnets[0]))

    for number in range(10):
        barrier = threading.Barrier(2)
        threads = [
            threading.Thread(target=init, args=(client, barrier, f"{name}{number}"))
            for client, name in zip(clients, "ab", strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for client in clients:
        client.close()
    assert sorted(found, key=lambda each: int(each.split(".")[2])) == [f"10.244.{number}.0/24" for number in range(20)]


def test_of_two_nodes_at_once_one_gets_the_subnet(database: NorthboundDatabase, run: Run) -> None:
    """Each is judged beside the other in its own transaction, whichever comes first; the loser is told of the winner."""
    run(*CLUSTER)
    clients = [northbound_client(database.remote("unix")) for _ in range(2)]
    refused: list[str] = []

    def init(client: NorthboundClient, barrier: threading.Barrier, name: str, subnet: str) -> None:
        client.connect(Deadline.after(60))
        asked = AskedNode(name, subnets_of(subnet, "--subnet"))
        barrier.wait(60)
        try:
            init_node(client, asked, WriteMode(Deadline.after(60)))
        except InvalidConfig as error:
            refused.append(str(error))

    for number in range(10, 20):
        barrier = threading.Barrier(2)
        nodes = (
            (f"a{number}", f"10.244.{number}.0/24,fd00:10:244:{number:x}::/64"),
            (f"b{number}", f"10.244.{number}.128/25,fd00:10:244:{number + 100:x}::/64"),
        )
        threads = [
            threading.Thread(target=init, args=(client, barrier, *each)) for client, each in zip(clients, nodes, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for client in clients:
        client.close()
    assert len(refused) == 10
    assert all("overlaps" in each for each in refused)
    assert len(database.nbctl("ls-list").splitlines()) == 1 + 10


def test_rows_made_by_hand_are_adopted_when_asked(database: NorthboundDatabase, run: Run) -> None:
    """Otherwise they are told, with their UUID."""
    database.nbctl("ls-add", "join")
    assert "Logical_Switch join" in run(*CLUSTER, code=1).output
    run(*CLUSTER, "--adopt")
    assert len(database.nbctl("ls-list").splitlines()) == 1


def test_the_database_listens_where_asked(database: NorthboundDatabase, run: Run) -> None:
    """And no more where that is not asked for any more; what others have it listen on stays."""
    database.nbctl(
        "--", "--id=@c", "create", "Connection", 'target="ptcp:0:127.0.0.5"', "--", "add", "NB_Global", ".", "connections", "@c"
    )
    run(*CLUSTER, "--set-connection", "ptcp:0:127.0.0.6")
    assert database.nbctl("get-connection").split() == ["ptcp:0:127.0.0.5", "ptcp:0:127.0.0.6"]
    run(*CLUSTER)
    assert database.nbctl("get-connection") == "ptcp:0:127.0.0.5"

"""OVN's daemons in the image of deploy/images, run by what overlays/ovn says of their containers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.ovn.contained import ADDRESSES, DATABASES, NODE, ContainedOvn
from tests.lab.runtimes import ovn_image
from tests.lab.runtimes.containerd_host import remove_cgroup
from tests.lab.runtimes.podman import PodmanError, Storage, own_storage
from tests.lab.switch.switch import Switch, wait_until

pytestmark = pytest.mark.timeout(900)  # the first run on a machine makes a Debian
FIRST, SECOND, THIRD = ADDRESSES
CHASSIS_KEYS = ("system-id", "hostname", "ovn-remote", "ovn-encap-type", "ovn-encap-ip", "ovn-bridge-datapath-type")


@pytest.fixture(scope="module")
def images(machine_as_it_was: None) -> Iterator[Storage]:
    archive = ovn_image.archive()
    with own_storage() as (podman, _):
        podman.call("load", f"--input={archive}")
        yield podman


@pytest.fixture
def ovn(images: Storage, switch: Switch, request: pytest.FixtureRequest) -> Iterator[ContainedOvn]:
    """Nothing of it is started. The indirect parameter is the number of members."""
    with TemporaryDirectory(prefix="uc-") as directory:
        made = ContainedOvn(images, switch, Path(directory), getattr(request, "param", len(ADDRESSES)))
        try:
            with made:
                yield made
        finally:
            remove_cgroup(made.cgroup)


def cluster_id(ovn: ContainedOvn, name: str) -> str:
    found = re.search(r"^Cluster ID: \S+ \((\S+)\)$", ovn.cluster(name), re.MULTILINE)
    assert found, ovn.cluster(name)
    return found[1]


def servers(ovn: ContainedOvn, name: str) -> dict[str, str]:
    """The address of each server of the cluster, by its short name."""
    return dict(re.findall(r"^    (\w+) \(\w+ at (\S+)\)", ovn.cluster(name), re.MULTILINE))


def test_three_members_go_on_without_one(ovn: ContainedOvn) -> None:
    """Each joins by itself; with any one of them killed the others serve, and it gets what was written meanwhile."""
    ovn.start_members(*ADDRESSES)
    wait_until(lambda: ovn.are_ready(*ADDRESSES), what="three members in both clusters")
    assert sorted(servers(ovn, f"nb@{SECOND}").values()) == [f"tcp:{each}:6643" for each in ADDRESSES]
    ovn.nbctl("--may-exist", "ls-add", "before")
    for number, address in enumerate(ADDRESSES):
        ovn.end_members(address)
        ovn.nbctl("--may-exist", "ls-add", f"without-{number}")
        ovn.start_members(address)
        wait_until(lambda: ovn.are_ready(*ADDRESSES), what=f"the member of {address} is back")
    own = ["ovn-nbctl", "--no-leader-only", f"--db=tcp:{FIRST}:6641", "--bare", "--columns=name", "list", "Logical_Switch"]
    assert set(ovn.run_in(f"nb@{FIRST}", *own).stdout.split()) == {"before", "without-0", "without-1", "without-2"}


def test_a_cluster_is_made_once(ovn: ContainedOvn) -> None:
    """The member that makes it waits until it has seen the others; after the loss of its files it joins, and makes none."""
    ovn.start_members(FIRST)
    wait_until(lambda: f"tcp:{THIRD}:6641, which may have one, does not answer" in ovn.log(f"nb@{FIRST}"), what="it waits")
    ovn.start_members(SECOND)
    wait_until(lambda: "joining the cluster" in ovn.log(f"nb@{SECOND}"), what="the second joins")
    assert not ovn.file(FIRST, "nb").exists()
    ovn.start_members(THIRD)
    wait_until(lambda: ovn.are_ready(*ADDRESSES), what="three members in both clusters")
    made = {database: cluster_id(ovn, f"{database}@{SECOND}") for database in DATABASES}
    [former] = [name for name, address in servers(ovn, f"nb@{SECOND}").items() if address == f"tcp:{FIRST}:6643"]
    ovn.end_members(FIRST)
    shutil.rmtree(ovn.file(FIRST, "nb").parent)
    ovn.start_members(FIRST)
    wait_until(lambda: ovn.are_ready(*ADDRESSES), what="it has joined again")
    assert {database: cluster_id(ovn, f"{database}@{FIRST}") for database in DATABASES} == made
    # it counts twice, until an administrator says that the former one does not come back (docs/ovn.md)
    assert len(servers(ovn, f"nb@{SECOND}")) == len(ADDRESSES) + 1
    kick = ["ovs-appctl", "--target=/run/ovn/ovnnb_db.ctl", "cluster/kick", DATABASES["nb"], former]
    assert not ovn.run_in(f"nb@{SECOND}", *kick).returncode
    wait_until(lambda: len(servers(ovn, f"nb@{SECOND}")) == len(ADDRESSES), what="the former one is out")


@pytest.mark.parametrize("ovn", [1], indirect=True)
def test_a_node_that_cannot_have_a_member_is_told(ovn: ContainedOvn, tmp_path: Path) -> None:
    """One whose address no member has, and one with the database of a package: the container ends, and says what to do."""
    ovn.file(FIRST, "nb").parent.mkdir(parents=True)
    (tmp_path / "nb.ovsschema").write_text(ovn.schema_file("nb"))
    subprocess.run(["ovsdb-tool", "create", ovn.file(FIRST, "nb"), tmp_path / "nb.ovsschema"], check=True)
    with pytest.raises(PodmanError, match="is a server's alone, as a package makes it"):
        ovn.run_to_end(f"nb@{FIRST}")
    with pytest.raises(PodmanError, match=rf"this machine's address is {SECOND}, and the members are tcp:{FIRST}:6641: label"):
        ovn.run_to_end(f"nb@{SECOND}")


def count_globals(ovn: ContainedOvn) -> int:
    """The rows of SB_Global; ovn-sbctl itself would make one."""
    query = json.dumps([DATABASES["sb"], {"op": "select", "table": "SB_Global", "where": [], "columns": ["nb_cfg"]}])
    done = ovn.run_in(f"sb@{FIRST}", "ovsdb-client", "--timeout=30", "query", ovn.remote("sb"), query)
    return len(json.loads(done.stdout)[0]["rows"])


@pytest.mark.parametrize("ovn", [1], indirect=True)
def test_from_the_databases_to_the_switch(ovn: ContainedOvn, switch: Switch, tmp_path: Path) -> None:
    """A single member of an older schema, whose schema becomes the image's; ovn-controller before ovn-northd; a logical port.

    ovn-controller meets no empty southbound database, by which that of OVN 23.03 dies. Its end leaves the flows in the switch,
    and a second one on the node ends.
    """
    schema = json.loads(ovn.schema_file("nb"))
    wanted, schema["version"] = schema["version"], "6.0.0"
    del schema["tables"]["Static_MAC_Binding"]
    (tmp_path / "older.ovsschema").write_text(json.dumps(schema))
    ovn.file(FIRST, "nb").parent.mkdir(parents=True)
    argv = ["create-cluster", str(ovn.file(FIRST, "nb")), str(tmp_path / "older.ovsschema"), f"tcp:{FIRST}:6643"]
    subprocess.run(["ovsdb-tool", "-vconsole:off", *argv], check=True)
    ovn.start_members(FIRST)
    wait_until(lambda: ovn.are_ready(FIRST), what="both databases")
    assert ovn.schema("nb") == "6.0.0"
    assert f"schema 6.0.0 becomes {wanted}" in ovn.run_to_end(f"schemas@{FIRST}")
    assert ovn.schema("nb") == wanted
    assert "becomes" not in ovn.run_to_end(f"schemas@{FIRST}")
    try:
        ovn.run_to_end(f"node-address@{FIRST}")
        ids = switch.rows("Open_vSwitch")[0]["external_ids"]
        assert (ids["hostname"], ids["ovn-encap-ip"]) == (NODE, FIRST)
        # the rest is written by init-node: tests/cluster
        values = {
            "system-id": NODE,
            "ovn-remote": ovn.remote("sb"),
            "ovn-encap-type": "geneve",
            "ovn-bridge-datapath-type": "netdev",
        }
        written = [f'external_ids:{key}="{value}"' for key, value in values.items()]
        switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", *written, "external_ids:ovn-encap-ip=10.98.0.9")
        ovn.run_to_end(f"node-address@{FIRST}")
        assert switch.rows("Open_vSwitch")[0]["external_ids"]["ovn-encap-ip"] == "10.98.0.9"
        assert count_globals(ovn) == 0
        ovn.run_to_end(f"southbound@{FIRST}")
        assert count_globals(ovn) == 1
        ovn.run_to_end(f"southbound@{FIRST}")
        assert count_globals(ovn) == 1
        ovn.start(f"ovn-controller@{FIRST}")
        wait_until(lambda: ovn.is_ready(f"ovn-controller@{FIRST}"), what="ovn-controller")
        wait_until(lambda: "br-int" in switch.bridges(), what="its bridge")
        ovn.start(f"northd@{FIRST}")
        wait_until(lambda: ovn.is_ready(f"northd@{FIRST}"), what="ovn-northd")
        assert switch.bridge("br-int")["datapath_type"] == "netdev"
        ovn.nbctl(
            "--may-exist", "ls-add", "s", "--", "lsp-add", "s", "p", "--", "lsp-set-addresses", "p", "0a:00:00:00:00:01 10.1.0.1"
        )
        port = ["add-port", "br-int", "p0", "--", "set", "Interface", "p0", "type=internal", "external_ids:iface-id=p"]
        switch.vsctl(*port)
        wait_until(lambda: switch.interface("p0")["external_ids"].get("ovn-installed") == "true", what="the port is installed")
        assert ovn.sbctl("--bare", "--columns=hostname", "list", "Chassis") == NODE
        with pytest.raises(PodmanError, match="already running"):
            ovn.run_to_end(f"ovn-controller@{FIRST}")
        flows = count_flows(switch)
        ovn.end(f"ovn-controller@{FIRST}", "TERM")
        assert count_flows(switch) == flows > 0
    finally:
        switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "external_ids", *CHASSIS_KEYS)
        for bridge in switch.bridges():
            switch.vsctl("--no-wait", "del-br", bridge)


def count_flows(switch: Switch) -> int:
    argv = ["ovs-ofctl", "-O", "OpenFlow15", "dump-flows", f"unix:{switch.rundir}/br-int.mgmt"]
    return len(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines())

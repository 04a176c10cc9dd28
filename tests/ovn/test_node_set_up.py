"""`ovn init-node` and the former tools on a machine: what they write there and into the northbound database.

The commands run as in a container that has the machine's root elsewhere. The northbound database and the switch's are real;
neither OVN nor ovs-vswitchd runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
from click.testing import CliRunner, Result

from tests.lab.ovn.database import Authority, NorthboundDatabase
from tests.lab.ovn.switch_database import SwitchDatabase
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.cli.former_tools import overlay
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cni.former_network import VERSIONS
from userspace_cni.cni.result import SUPPORTED_VERSIONS

CLUSTER = ("ovn", "init-cluster", "--cluster-subnet", "10.244.0.0/16")
NODE = ("ovn", "init-node", "--node", "n1", "--subnet", "10.244.1.0/24")
ENDS = ("--encap-ip", "192.0.2.11")
MASTER = ("master-init", "--cluster-ip-subnet=192.168.0.0/16", "--master-switch-subnet=192.168.1.0/24", "--node-name=Master")
MINION = (
    "minion-init",
    "--cluster-ip-subnet=192.168.0.0/16",
    "--minion-switch-subnet=192.168.2.0/24",
    "--node-name=kube-minion1",
)
DATAPATH = "ovn-bridge-datapath-type"
Run = Callable[..., Result]


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="nb-") as text:
        yield Path(text)


@pytest.fixture
def authority(directory: Path) -> Authority:
    return Authority(directory / "ca")


@pytest.fixture
def database(directory: Path, authority: Authority) -> Iterator[NorthboundDatabase]:
    with NorthboundDatabase(directory, authority) as served:
        yield served


@pytest.fixture
def switch_database(directory: Path) -> Iterator[SwitchDatabase]:
    with SwitchDatabase(directory) as served:
        yield served


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """The node's own settings file, in a directory of its own."""
    path = tmp_path / "etc/config.toml"
    path.parent.mkdir()
    path.write_text('log_level = "warning"\n')
    return path


@pytest.fixture
def env(
    database: NorthboundDatabase, switch_database: SwitchDatabase, directory: Path, tmp_path: Path, settings: Path
) -> dict[str, str]:
    """The environment of a command for the machine whose root is `directory`."""
    return {
        **environ(tmp_path),
        "USERSPACE_CNI_HOST_ROOT": str(directory),
        "USERSPACE_CNI_OVSDB": switch_database.remote.replace(str(directory), ""),
        "USERSPACE_CNI_OVN_NB": database.remote("unix").replace(str(directory), ""),
        "USERSPACE_CNI_CONFIG": str(settings),
    }


@pytest.fixture
def run(env: dict[str, str]) -> Run:
    """Runs a command line; it has to end with `code`. `more`: variables beside those of the machine."""

    def invoke(*arguments: str, code: int = 0, program: click.Command = userspace_cni, **more: str) -> Result:
        done = CliRunner(env=env | more).invoke(program, list(arguments))
        assert done.exit_code == code, done.output
        return done

    return invoke


def ports(settings: Path) -> list[str]:
    """The gateways of the settings file."""
    return [each["port"] for each in tomllib.loads(settings.read_text()).get("gateway", [])]


def test_two_at_once_complete(
    run: Run, env: dict[str, str], settings: Path, switch_database: SwitchDatabase, database: NorthboundDatabase
) -> None:
    """One waits for the other: they agree on the system-id, and the settings file has one port beside what it had."""
    run(*CLUSTER)
    argv = [sys.executable, "-m", "userspace_cni", *NODE, *ENDS]
    for _ in range(3):
        made = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        said = [each.communicate(timeout=300) for each in made]
        assert [each.returncode for each in made] == [0] * 4, said
        told = {line for out, _ in said for line in out.splitlines() if "system-id" in line}
        assert told == {f"~ Open_vSwitch . external_ids:system-id={switch_database.ids['system-id']}"}
        assert ports(settings) == ["k8s-n1"]
        assert settings.read_text().count("begin") == 1
        assert settings.read_text().startswith('log_level = "warning"\n')
        switch_database.vsctl("clear", "Open_vSwitch", ".", "external_ids")
        settings.write_text('log_level = "warning"\n')
    assert database.nbctl("ls-list").count("(n1)") == 1


def test_nothing_is_written_where_the_settings_file_cannot_be(
    run: Run, settings: Path, switch_database: SwitchDatabase, database: NorthboundDatabase
) -> None:
    """Neither rows nor external_ids: the file is judged before the first of them."""
    run(*CLUSTER)
    whole = settings.read_text()
    settings.write_text(f"{whole}# written by userspace-cni ovn init-node: begin\n")
    assert "init-node: end" in run(*NODE, *ENDS, code=1).output
    settings.write_text(f'{whole}[[gateway]]\nport = "k8s-n1"\nbridge = "br0"\naddresses = ["192.0.2.9/24"]\n')
    assert "k8s-n1" in run(*NODE, *ENDS, code=2).output
    assert "(n1)" not in database.nbctl("ls-list")
    assert switch_database.ids == {}
    settings.write_text(whole)
    run(*NODE, *ENDS)
    assert ports(settings) == ["k8s-n1"]


def test_a_settings_file_that_nothing_can_replace(
    run: Run, env: dict[str, str], settings: Path, switch_database: SwitchDatabase, database: NorthboundDatabase
) -> None:
    """It is a mount of its own, as a container may have it: that is known before rows and external_ids are written. Where it has
    all that is to be in it, the command goes on."""
    run(*CLUSTER)

    def run_mounted() -> subprocess.CompletedProcess[str]:
        script = 'mount --bind "$0" "$0" && exec "$@"'
        argv = ["unshare", "--mount", "sh", "-c", script, str(settings), sys.executable, "-m", "userspace_cni", *NODE, *ENDS]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)

    refused = run_mounted()
    assert (refused.returncode, f"replacing {settings}" in refused.stderr) == (1, True), refused
    assert "(n1)" not in database.nbctl("ls-list")
    assert switch_database.ids == {}
    assert [each.name for each in settings.parent.iterdir() if each.name.endswith(".new")] == []
    run(*NODE, *ENDS)
    assert run_mounted().returncode == 0


def test_a_type_of_tunnels_alone(run: Run, switch_database: SwitchDatabase) -> None:
    """It is written also without an address; and a run that does not name it leaves it."""
    run(*CLUSTER)
    run(*NODE, "--encap-type", "vxlan")
    assert switch_database.ids["ovn-encap-type"] == "vxlan"
    assert "ovn-encap-ip" not in switch_database.ids
    run(*NODE, *ENDS)
    assert switch_database.ids["ovn-encap-type"] == "vxlan"
    run(*NODE, "--encap-type", "geneve")
    assert (switch_database.ids["ovn-encap-type"], switch_database.ids["ovn-encap-ip"]) == ("geneve", "192.0.2.11")


def test_a_node_that_is_to_have_no_port_any_more(run: Run, settings: Path, database: NorthboundDatabase) -> None:
    """Its row goes, and its part of the settings file: what stands around that stays."""
    run(*CLUSTER)
    run(*NODE, *ENDS)
    after = '\n[[gateway]]\nport = "gw1"\nbridge = "br0"\naddresses = ["192.0.2.9/24"]\n'
    settings.write_text(settings.read_text() + after)
    run(*NODE, "--no-management-port")
    assert ports(settings) == ["gw1"]
    assert settings.read_text().startswith('log_level = "warning"\n')
    assert "k8s-n1" not in database.nbctl("show")
    assert "nothing was to be changed" in run(*NODE, "--no-management-port").output


def test_files_for_tls_are_the_hosts(run: Run, database: NorthboundDatabase, authority: Authority, directory: Path) -> None:
    """As sockets they are found below the host's root; messages have the host's own paths."""
    key, certificate = authority.sign("client")
    files = {"PRIVATE_KEY": key, "CERTIFICATE": certificate, "CA_CERT": authority.certificate}
    over = {f"USERSPACE_CNI_OVN_{name}": path.removeprefix(str(directory)) for name, path in files.items()}
    over["USERSPACE_CNI_OVN_NB"] = database.remote("ssl")
    run(*CLUSTER, **over)
    run(*NODE, *ENDS, **over)
    assert "(n1)" in database.nbctl("ls-list")
    database.stop()
    said = run(*CLUSTER, code=3).output
    assert "unix:/nb.sock" in said
    assert str(directory) not in said


def test_a_target_that_others_opened(run: Run, database: NorthboundDatabase) -> None:
    """The database listens there already, so no row of ours is made; theirs stays, and becomes ours where that is asked."""
    database.nbctl("set-connection", "ptcp:0:127.0.0.5")
    row = database.nbctl("--bare", "--columns=_uuid", "list", "Connection")
    for _ in range(2):
        run(*CLUSTER, "--set-connection", "ptcp:0:127.0.0.5", "--set-connection", "ptcp:0:127.0.0.6")
        assert database.nbctl("get-connection").split() == ["ptcp:0:127.0.0.5", "ptcp:0:127.0.0.6"]
    assert run(*CLUSTER).output.splitlines() == ["- Connection ptcp:0:127.0.0.6"]
    assert database.nbctl("get-connection") == "ptcp:0:127.0.0.5"
    run(*CLUSTER, "--set-connection", "ptcp:0:127.0.0.5", "--adopt")
    assert database.nbctl("--bare", "--columns=_uuid", "list", "Connection") == row
    run(*CLUSTER)
    assert database.nbctl("get-connection") == ""


def test_addresses_of_rows_that_are_none(run: Run, database: NorthboundDatabase) -> None:
    """The server takes any text; the error names row, column and value, and what shows the row."""
    run(*CLUSTER)
    database.nbctl("lrp-add", "ovn_cluster_router", "rtos-x", "0a:58:0a:f4:09:01", "10.244.9.1/24")
    database.nbctl("set", "Logical_Router_Port", "rtos-x", 'networks="10.244.9.1/240"')
    database.nbctl("set", "Logical_Router_Port", "rtoj-ovn_cluster_router", 'networks="10.244.9.1/240"')
    for command in (NODE, CLUSTER):
        said = run(*command, code=1).output
        for text in ("networks of Logical_Router_Port rtoj-ovn_cluster_router", "10.244.9.1/240", "ovn-nbctl list"):
            assert text in said
    database.nbctl("set", "Logical_Router", "ovn_cluster_router", 'external_ids:k8s-cluster-subnets="10.244"')
    assert "external_ids of Logical_Router ovn_cluster_router" in run(*NODE, code=1).output


def test_the_former_tools_have_the_userspace_datapath(run: Run, switch_database: SwitchDatabase) -> None:
    """Without it no port for vhost-user opens; they write no other key, and what an administrator chose stays."""
    run(*MASTER, program=overlay)
    assert switch_database.ids == {DATAPATH: "netdev"}
    switch_database.vsctl("clear", "Open_vSwitch", ".", "external_ids")
    run(*MINION, program=overlay)
    assert switch_database.ids == {DATAPATH: "netdev"}
    switch_database.vsctl("set", "Open_vSwitch", ".", f"external_ids:{DATAPATH}=system")
    run(*MINION, program=overlay)
    assert switch_database.ids == {DATAPATH: "system"}


def test_the_former_tools_adopt_rows(run: Run, database: NorthboundDatabase) -> None:
    """What they advise is an option of theirs: rows that the tools of then made become ours."""
    database.nbctl("lr-add", "Master")
    assert "--adopt" in run(*MASTER, program=overlay, code=1).output
    run(*MASTER, "--adopt", program=overlay)
    assert database.nbctl("get", "Logical_Router", "Master", "external_ids:owner") == "userspace-cni"
    database.nbctl("ls-add", "kube-minion1")
    assert "--adopt" in run(*MINION, program=overlay, code=1).output
    run(*MINION, "--adopt", program=overlay)
    assert database.nbctl("ls-list").count("(kube-minion1)") == 1


def test_errors_have_the_options_of_then(run: Run) -> None:
    """The former tools name those that they have."""
    small = [each.replace("/24", "/30") for each in MASTER]
    said = run(*small, program=overlay, code=2).output
    assert "--master-switch-subnet is 192.168.1.0/30" in said
    apart = [each.replace("192.168.0.0/16", "10.0.0.0/16") for each in MASTER]
    said = run(*apart, program=overlay, code=2).output
    assert "--master-switch-subnet is 192.168.1.0/24, which is no part" in said
    run(*MASTER, program=overlay)
    narrow = [each.replace("192.168.0.0/16", "192.168.64.0/18") for each in MASTER]
    assert "--cluster-ip-subnet" in run(*narrow, program=overlay, code=2).output


def test_an_end_of_tunnels_that_is_not_here(run: Run) -> None:
    """init-node tells of it, and does what it was asked for."""
    run(*CLUSTER)
    said = run(*NODE, *ENDS).output
    assert "no link and no bridge of this node has 192.0.2.11" in said
    assert "external_ids:ovn-encap-ip=192.0.2.11" in said


def test_a_route_to_services(run: Run, settings: Path) -> None:
    """It is in the node's own port, for as long as the option is given; a subnet that the cluster has is refused."""
    run(*CLUSTER)
    assert "10.244.0.0/16 of the cluster" in run(*NODE, *ENDS, "--service-subnet", "10.244.9.0/24", code=2).output
    run(*NODE, *ENDS, "--service-subnet", "10.96.0.0/12")
    assert 'dst = "10.96.0.0/12"' in settings.read_text()
    run(*NODE, *ENDS)
    assert "10.96.0.0/12" not in settings.read_text()


def test_a_cluster_of_before_gets_the_second_group(run: Run, database: NorthboundDatabase) -> None:
    """A node is made with the groups that are there; the next runs of both commands make and join the other one."""

    def groups_of_node() -> int:
        return len(database.nbctl("--bare", "--columns=load_balancer_group", "list", "Logical_Switch", "n1").split())

    node = (*NODE, "--no-chassis", "--no-management-port")
    run(*CLUSTER)
    database.nbctl("destroy", "Load_Balancer_Group", "gateway-load-balancers")
    run(*node)
    assert groups_of_node() == 1
    run(*CLUSTER)
    run(*node)
    assert groups_of_node() == 2
    assert "nothing was to be changed" in run(*node).output


def test_the_former_tools_lines(run: Run, database: NorthboundDatabase, settings: Path) -> None:
    """Their names of rows: the router as the first node, small letters elsewhere; a second run changes nothing."""
    run(*MASTER, program=overlay)
    run(*MINION, program=overlay)
    assert ports(settings) == ["k8s-kube-minion"]
    assert database.nbctl("lr-list").split()[1] == "(Master)"
    assert sorted(line.split()[1] for line in database.nbctl("ls-list").splitlines()) == ["(join)", "(kube-minion1)", "(master)"]
    found = [line.split()[1] for line in database.nbctl("lrp-list", "Master").splitlines()]
    assert sorted(found) == ["(rtoj-Master)", "(rtos-kube-minion1)", "(rtos-master)"]
    assert database.nbctl("get", "Logical_Router_Port", "rtoj-Master", "networks") == '["100.64.1.1/24"]'
    assert database.nbctl("get", "Logical_Switch", "kube-minion1", "external_ids:gateway_ip") == '"192.168.2.1/24"'
    for key in ("tcp", "udp"):
        balancer = ("find", "Load_Balancer", f"external_ids:k8s-cluster-lb-{key}=yes")
        assert database.nbctl("--bare", "--columns=protocol", *balancer) == key
    assert "nothing was to be changed" in run(*MASTER, program=overlay).output
    assert "nothing was to be changed" in run(*MINION, program=overlay).output
    gateway = ("gateway-init", "--cluster-ip-subnet=192.168.0.0/16", "--physical-interface=eth0", "--physical-ip=192.0.2.7/24")
    said = run(*gateway, "--node-name=kube-minion1", "--default-gw=192.0.2.1", program=overlay, code=1).output
    assert "userspace-cni ovn init-node makes it one" in said


def test_the_plugin_of_then(run: Run, directory: Path) -> None:
    """minion-init puts it in place under its name, by which it has the versions of then, too; and the runtimes' network, unless
    there is one."""
    plugin, network = directory / "opt/cni/bin/ovn_cni", directory / "etc/cni/net.d/10-net.conf"
    run(*MINION, program=overlay, code=1)
    assert not plugin.exists()
    run(*MASTER, program=overlay)
    assert run(*MINION, program=overlay).stdout.splitlines()[:2] == ["+ /opt/cni/bin/ovn_cni", "+ /etc/cni/net.d/10-net.conf"]
    plugin.unlink()
    again = run(*MINION, program=overlay)
    assert (again.stdout, "nothing was to be changed" in again.output) == ("+ /opt/cni/bin/ovn_cni\n", False)
    said = subprocess.run([plugin], env={"CNI_COMMAND": "VERSION"}, input="{}", capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["supportedVersions"] == [*VERSIONS, *SUPPORTED_VERSIONS]
    renamed = plugin.with_name("userspace")
    renamed.write_bytes(plugin.read_bytes())
    renamed.chmod(0o755)
    said = subprocess.run([renamed], env={"CNI_COMMAND": "VERSION"}, input="{}", capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["supportedVersions"] == [*SUPPORTED_VERSIONS]
    found = json.loads(network.read_text())
    assert (found["type"], found["bridge"], found["mtu"]) == ("ovn_cni", "br-int", 1400)
    assert found["ipam"] == {"type": "host-local", "subnet": "192.168.2.0/24"}
    network.write_text("{}")
    plugin.unlink()
    assert "10-net.conf is there and stays" in run(*MINION, program=overlay).output
    assert plugin.exists()
    assert network.read_text() == "{}"


def test_the_places_of_then(run: Run, directory: Path, database: NorthboundDatabase) -> None:
    """Directories and MTU are those of the tools' own settings; another program's plugin is not replaced, and told first."""
    former = directory / "etc/openvswitch/ovn_k8s.conf"
    former.parent.mkdir(parents=True)
    former.write_text('[default]\nmtu=1300\ncni_link_path="/plugins"\ncni_conf_path=/networks\n')
    run(*MASTER, program=overlay)
    plugin = directory / "plugins/ovn_cni"
    plugin.parent.mkdir()
    plugin.write_text("#!/usr/bin/python\nimport ovn_k8s\n")
    assert "another program has this file" in run(*MINION, program=overlay, code=1).output
    assert "kube-minion1" not in database.nbctl("ls-list")
    plugin.unlink()
    plugin.symlink_to("/nowhere/ovn-k8s-cni-overlay")
    run(*MINION, program=overlay)
    assert plugin.is_file()
    assert json.loads((directory / "networks/10-net.conf").read_text())["mtu"] == 1300

"""`ovn init-node` on a machine: rows, external_ids and the settings file, judged together and written by one command at a time.

The northbound database and the switch's are real; neither OVN nor ovs-vswitchd runs.
"""

from __future__ import annotations

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

CLUSTER = ("ovn", "init-cluster", "--cluster-subnet", "10.244.0.0/16")
NODE = ("ovn", "init-node", "--node", "n1", "--subnet", "10.244.1.0/24")
ENDS = ("--encap-ip", "192.0.2.11")
MASTER = ("master-init", "--cluster-ip-subnet=192.168.0.0/16", "--master-switch-subnet=192.168.1.0/24", "--node-name=m")
MINION = ("minion-init", "--cluster-ip-subnet=192.168.0.0/16", "--minion-switch-subnet=192.168.2.0/24", "--node-name=n2")
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
def env(database: NorthboundDatabase, switch_database: SwitchDatabase, tmp_path: Path, settings: Path) -> dict[str, str]:
    """The environment of a command on this machine."""
    return {
        **environ(tmp_path),
        "USERSPACE_CNI_OVSDB": switch_database.remote,
        "USERSPACE_CNI_OVN_NB": database.remote("unix"),
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


@pytest.mark.parametrize("kind", ["unix", "ssl"])
def test_sockets_and_files_are_the_hosts(
    run: Run, database: NorthboundDatabase, authority: Authority, directory: Path, kind: str
) -> None:
    """In a container that has the host's root elsewhere they are found below that; messages have the host's own paths."""
    key, certificate = authority.sign("client")
    files = {"PRIVATE_KEY": key, "CERTIFICATE": certificate, "CA_CERT": authority.certificate}
    inside = {f"USERSPACE_CNI_OVN_{name}": path.removeprefix(str(directory)) for name, path in files.items()}
    inside |= {
        "USERSPACE_CNI_HOST_ROOT": str(directory),
        "USERSPACE_CNI_OVSDB": "unix:/switch.sock",
        "USERSPACE_CNI_OVN_NB": "unix:/nb.sock" if kind == "unix" else database.remote("ssl"),
    }
    run(*CLUSTER, **inside)
    run(*NODE, *ENDS, **inside)
    assert "(n1)" in database.nbctl("ls-list")
    if kind == "unix":
        database.stop()
        said = run(*CLUSTER, code=3, **inside).output
        assert "unix:/nb.sock" in said
        assert str(directory) not in said


def test_a_target_that_others_opened(run: Run, database: NorthboundDatabase) -> None:
    """The database listens there already, so no row of ours is made; theirs stays, and becomes ours where that is asked."""
    database.nbctl("set-connection", "ptcp:0:127.0.0.5")
    row = database.nbctl("--bare", "--columns=_uuid", "list", "Connection")
    for _ in range(2):
        run(*CLUSTER, "--set-connection", "ptcp:0:127.0.0.5", "--set-connection", "ptcp:0:127.0.0.6")
        assert database.nbctl("get-connection").split() == ["ptcp:0:127.0.0.5", "ptcp:0:127.0.0.6"]
    run(*CLUSTER)
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
    database.nbctl("lr-add", "m")
    assert "--adopt" in run(*MASTER, program=overlay, code=1).output
    run(*MASTER, "--adopt", program=overlay)
    assert database.nbctl("get", "Logical_Router", "m", "external_ids:owner") == "userspace-cni"
    database.nbctl("ls-add", "n2")
    assert "--adopt" in run(*MINION, program=overlay, code=1).output
    run(*MINION, "--adopt", program=overlay)
    assert database.nbctl("ls-list").count("(n2)") == 1

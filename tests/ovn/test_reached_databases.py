"""The commands of `ovn` and the watcher with databases behind TLS, and with both databases on three servers each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.ovn.cluster import SOUTHBOUND, Cluster
from tests.lab.ovn.database import Authority, NorthboundDatabase, SouthboundDatabase
from tests.lab.ovn.switch_database import SwitchDatabase
from tests.lab.switch.switch import wait_until
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.cli.main import userspace_cni

CLUSTER = ("init-cluster", "--cluster-subnet", "10.244.0.0/16")
COMMANDS = {
    "n1": ("init-node", "--node", "n1", "--subnet", "10.244.1.0/24", "--encap-ip", "192.0.2.1"),
    "n2": ("init-node", "--no-chassis", "--node", "n2", "--subnet", "10.244.2.0/24"),
}


@dataclass(frozen=True)
class Reached:
    """Both databases, the settings by which they are reached, and what happens to them amid the test."""

    nb: str
    sb: str
    settings: Mapping[str, str]
    disturb: Callable[[], None]


@contextmanager
def secured(directory: Path, authority: Authority) -> Iterator[Reached]:
    """Databases at addresses where clients need a certificate of the authority; nothing happens to them."""
    key, certificate = authority.sign("client")
    files = {"PRIVATE_KEY": key, "CERTIFICATE": certificate, "CA_CERT": authority.certificate}
    settings = {f"USERSPACE_CNI_OVN_{name}": path for name, path in files.items()}
    for name in ("nb", "sb"):
        (directory / name).mkdir()
    with (
        NorthboundDatabase(directory / "nb", authority) as north,
        SouthboundDatabase(directory / "sb", authority) as south,
    ):
        yield Reached(north.remote("ssl"), south.remote("ssl"), settings, lambda: None)


@contextmanager
def clustered(directory: Path, _: Authority) -> Iterator[Reached]:
    """Databases of three servers, whose leaders are killed amid the test."""
    for name in ("nb", "sb"):
        (directory / name).mkdir()
    with Cluster(directory / "nb") as north, Cluster(directory / "sb", SOUTHBOUND) as south:

        def disturb() -> None:
            for each in (north, south):
                each.kill(each.leader)
                wait_until(lambda each=each: each.leader, what="another leader")  # type: ignore[misc]

        yield Reached(north.remote, south.remote, {}, disturb)


@pytest.fixture(params=[secured, clustered], ids=["tls", "raft"])
def reached(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Reached]:
    with TemporaryDirectory(prefix="db-") as directory, request.param(Path(directory), authority) as found:
        yield found


@pytest.fixture
def env(reached: Reached, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a machine whose switch says where the databases are."""
    settings = tmp_path / "config.toml"
    settings.touch()
    with TemporaryDirectory(prefix="sw-") as directory, SwitchDatabase(Path(directory)) as switch:
        switch.write_ids({"ovn-nb": reached.nb, "ovn-remote": reached.sb})
        yield {
            **environ(tmp_path),
            **reached.settings,
            "USERSPACE_CNI_OVSDB": switch.remote,
            "USERSPACE_CNI_CONFIG": str(settings),
        }


def run(env: Mapping[str, str], *arguments: str, code: int = 0) -> str:
    """Stdout of a command of `ovn`, which has to end with `code`; then also stderr."""
    done = CliRunner(env=env).invoke(userspace_cni, ["ovn", *arguments])
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout


def told(env: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(env, "status", "--json"))
    return found


def test_the_commands(reached: Reached, env: dict[str, str]) -> None:
    """They write and read as with one server in the clear, before and after a leader's end, and find nothing to change then."""
    run(env, *CLUSTER)
    run(env, *COMMANDS["n1"])
    reached.disturb()
    run(env, *COMMANDS["n2"])
    status = told(env)
    assert (status["northbound"]["remote"], status["southbound"]["remote"]) == (reached.nb, reached.sb)
    assert sorted(each["name"] for each in status["nodes"]) == ["n1", "n2"]
    for command in (CLUSTER, *COMMANDS.values()):
        assert json.loads(run(env, *command, "--json"))["changes"] == []


def test_the_watcher(reached: Reached, env: dict[str, str], tmp_path: Path) -> None:
    """It keeps pods' ports, and goes on after a leader's end."""
    run(env, *CLUSTER)
    run(env, *COMMANDS["n1"])
    with ApiServer() as api:
        api.add(node("n1"))
        known = os.environ | env | {"USERSPACE_CNI_KUBECONFIG": api.kubeconfig(tmp_path)}
        watcher = subprocess.Popen([sys.executable, "-m", "userspace_cni", "ovn", "watch"], env=known, stderr=subprocess.PIPE)
        try:
            for name in ("before", "after"):
                api.add_pod({"metadata": {"name": name}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}})
                wait_until(lambda name=name: "ovn" in api.annotations("default", name), 120.0, f"the annotation of {name}")  # type: ignore[misc]
                if name == "before":
                    reached.disturb()
        finally:
            watcher.send_signal(signal.SIGTERM)
            _, logged = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, logged.decode()
    assert {each["name"] for each in told(env)["ports"]} == {"k8s-n1", "default_before", "default_after"}


@pytest.mark.parametrize("reached", [secured], indirect=True, ids=["tls"])
def test_an_authority_that_did_not_sign(env: dict[str, str], tmp_path: Path) -> None:
    """The server is not believed, nothing is written, and the end says so; without all three files it is a wrong setting."""
    other = Authority(tmp_path / "other")
    said = run(env | {"USERSPACE_CNI_OVN_CA_CERT": other.certificate}, *CLUSTER, code=3)
    assert "certificate" in said
    assert "ovn_ca_cert must be set" in run(env | {"USERSPACE_CNI_OVN_CA_CERT": ""}, *CLUSTER, code=2)
    assert told(env)["router"] == ""

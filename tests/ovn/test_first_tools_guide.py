"""The guide of ovn-kubernetes' first tools, line by line: only addresses, ports and the token are other ones.

Each machine has a switch, and a root of its own in which the programs write; the databases' machine is the first one. OVN's
daemons do not run: rows and files are compared, and packets are tests/ovn/test_two_chassis.py's and deploy/demo-ovn.sh's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.lab.kube.apiserver import TOKEN, ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.ovn.database import NorthboundDatabase
from tests.lab.switch.switch import Switch, wait_until
from tests.unit.cli.test_cli_streams import environ

NODES: Final = ("kube-master", "kube-minion1", "kube-minion2")
PAGES: Final = {"PRIVATE_SWITCH_PAGES": "256", "PRIVATE_SWITCH_SOCKET_MEM": "128"}
REGISTER: Final = """
ovs-vsctl set Open_vSwitch . external_ids:ovn-remote="{sb}" \
  external_ids:ovn-nb="{nb}" \
  external_ids:ovn-encap-ip={ip} \
  external_ids:ovn-encap-type="geneve"
ovs-vsctl set Open_vSwitch . external_ids:k8s-api-server="{api}" external_ids:k8s-api-token="{token}"
"""
MASTER: Final = """
ovn-k8s-overlay master-init --cluster-ip-subnet="192.168.0.0/16" --master-switch-subnet="192.168.1.0/24" \
  --node-name="kube-master"
"""
MINION: Final = """
ovn-k8s-overlay minion-init --cluster-ip-subnet="192.168.0.0/16" --minion-switch-subnet="192.168.{number}.0/24" \
  --node-name="{name}"
"""
WATCHER: Final = "exec ovn-k8s-watcher --overlay --pidfile --log-file -vfile:info -vconsole:emer --detach"
LISTING: Final = """
switch (join)
    port jtor-kube-master
        type: router
        router-port: rtoj-kube-master
switch (kube-master)
    port k8s-kube-master
        addresses: ["<MAC> 192.168.1.2"]
    port stor-kube-master
        type: router
        router-port: rtos-kube-master
switch (kube-minion1)
    port default_apache
        addresses: ["dynamic"]
    port k8s-kube-minion1
        addresses: ["<MAC> 192.168.2.2"]
    port stor-kube-minion1
        type: router
        router-port: rtos-kube-minion1
switch (kube-minion2)
    port k8s-kube-minion2
        addresses: ["<MAC> 192.168.3.2"]
    port stor-kube-minion2
        type: router
        router-port: rtos-kube-minion2
router (kube-master)
    port rtoj-kube-master
        mac: "<MAC>"
        networks: ["100.64.1.1/24"]
    port rtos-kube-master
        mac: "<MAC>"
        networks: ["192.168.1.1/24"]
    port rtos-kube-minion1
        mac: "<MAC>"
        networks: ["192.168.2.1/24"]
    port rtos-kube-minion2
        mac: "<MAC>"
        networks: ["192.168.3.1/24"]
"""
"""What `ovn-nbctl show` said then, in the order of names, with each MAC as <MAC>. Ports to a router had a row with its MAC, too:
their addresses are OVN's newer word "router" now, which is not shown."""


class Machine:
    """One machine of the guide: a switch, the programs on PATH, and the root in which they write."""

    def __init__(self, switch: Switch, root: Path) -> None:
        self.switch = switch
        self.root = root
        self.settings = root / "config.toml"
        self.settings.touch()
        os.link(f"{switch.rundir}/db.sock", root / "db.sock")
        self.environ = {
            **environ(root),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OVS_RUNDIR": switch.rundir,
            "USERSPACE_CNI_OVSDB": "unix:/db.sock",
            "USERSPACE_CNI_HOST_ROOT": str(root),
            "USERSPACE_CNI_CONFIG": str(self.settings),
        }

    def run(self, lines: str) -> str:
        """What the shell printed; each line has to succeed."""
        done = subprocess.run(["bash", "-ec", lines], env=self.environ, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, ...]]:
    with ExitStack() as stack:
        found = []
        for _ in NODES:
            switch = Switch(environment=dict(PAGES)).start()
            stack.callback(switch.stop)
            found.append(Machine(switch, Path(stack.enter_context(TemporaryDirectory(prefix="root-", dir="/tmp")))))
        yield tuple(found)


def listing_of(shown: str, addresses: str) -> str:
    """What `ovn-nbctl show` says, in the order of names and with what differs from then as it was then.

    A MAC is <MAC>; the port with these `addresses`, which the watcher chose, had "dynamic", by which OVN did. Newer OVN also
    shows the link-local addresses of routers' ports.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for line in shown.splitlines():
        if not line.startswith(" "):
            ports = found.setdefault(re.sub(r"^(\w+) \S+ (\(\S+\)).*", r"\1 \2", line), {})
        elif line.startswith("    port "):
            rows = ports.setdefault(line, [])
        elif not line.lstrip().startswith("ipv6-lla:"):
            rows.append(line)
    text = "\n".join(
        "\n".join([thing, *("\n".join([port, *ports[port]]) for port in sorted(ports))])
        for thing, ports in sorted(found.items(), key=lambda item: (item[0].startswith("router"), item[0]))
    )
    text = text.replace(f'["{addresses}"]', '["dynamic"]')
    return re.sub(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b", "<MAC>", text)


def test_the_guides_lines(database: NorthboundDatabase, machines: tuple[Machine, ...]) -> None:
    """They run as written, and what OVN's database has then is the guide's listing, row by row; a second run changes nothing."""
    master, *minions = machines
    with ApiServer() as api:
        for name in NODES:
            api.add(node(name))
        found = {"nb": database.remote("tcp"), "sb": "tcp:127.0.0.1:6642", "api": f"127.0.0.1:{api.port}", "token": TOKEN}

        def run_all() -> str:
            for number, machine in enumerate(machines, 1):
                machine.run(REGISTER.format(ip=f"192.0.2.{number}", **found))
            said = master.run(MASTER)
            for number, (machine, name) in enumerate(zip(minions, NODES[1:], strict=True), 2):
                said += machine.run(MINION.format(number=number, name=name))
            return said

        run_all()
        watcher = subprocess.Popen(["bash", "-c", WATCHER], env=master.environ, stderr=subprocess.PIPE, text=True)
        try:
            api.add_pod({"metadata": {"name": "apache"}, "spec": {"nodeName": NODES[1]}, "status": {"phase": "Running"}})
            wait_until(lambda: "ovn" in api.annotations("default", "apache"), what="the pod's annotation")
        finally:
            watcher.send_signal(signal.SIGTERM)
            _, logged = watcher.communicate(timeout=60)
        assert watcher.returncode == 0, logged
        said = json.loads(api.annotations("default", "apache")["ovn"])
    assert (said["ip_address"], said["gateway_ip"]) == ("192.168.2.3/24", "192.168.2.1")
    shown = database.nbctl("show")
    assert listing_of(shown, f"{said['mac_address']} 192.168.2.3") == LISTING.strip()
    for name in ("jtor-kube-master", *(f"stor-{each}" for each in NODES)):
        assert database.nbctl("get", "Logical_Switch_Port", name, "addresses") == "[router]"
    assert run_all().count("nothing was to be changed") == len(NODES)
    assert database.nbctl("show") == shown


def test_what_the_guides_lines_leave_on_a_machine(database: NorthboundDatabase, machines: tuple[Machine, ...]) -> None:
    """The plugin and the runtimes' network on a minion, the node's port in its settings, and a userspace datapath on each."""
    master, minion, _ = machines
    words = {"nb": database.remote("tcp"), "sb": "tcp:127.0.0.1:6642", "api": "127.0.0.1:8080", "token": TOKEN}
    for number, machine in enumerate((master, minion), 1):
        machine.run(REGISTER.format(ip=f"192.0.2.{number}", **words))
    master.run(MASTER)
    minion.run(MINION.format(number=2, name=NODES[1]))
    for machine, name in ((master, NODES[0]), (minion, NODES[1])):
        ids = machine.switch.rows("Open_vSwitch")[0]["external_ids"]
        assert (ids["ovn-bridge-datapath-type"], ids["ovn-nb"]) == ("netdev", words["nb"])
        assert [each["port"] for each in tomllib.loads(machine.settings.read_text())["gateway"]] == [f"k8s-{name[:11]}"]
        assert (machine.root / "opt/cni/bin/ovn_cni").exists() == (machine is minion)
    network = json.loads((minion.root / "etc/cni/net.d/10-net.conf").read_text())
    assert (network["name"], network["type"], network["ipam"]["subnet"]) == ("net", "ovn_cni", "192.168.2.0/24")
    balancers = database.nbctl("--bare", "--columns=load_balancer", "list", "Logical_Switch", "kube-minion1").split()
    keys = ("k8s-cluster-lb-tcp", "k8s-cluster-lb-udp")
    marked = [database.nbctl("--bare", "--columns=_uuid", "find", "Load_Balancer", f"external_ids:{key}=yes") for key in keys]
    assert sorted(balancers) == sorted(marked)
    router = ("--bare", "--columns=name", "find", "Logical_Router", "external_ids:k8s-cluster-router=yes")
    assert database.nbctl(*router) == "kube-master"
    joined = ("--bare", "--columns=name", "find", "Logical_Router_Port", "external_ids:connect_to_join=yes")
    assert database.nbctl(*joined) == "rtoj-kube-master"
    assert database.nbctl("get", "Logical_Switch", "kube-minion1", "other_config:subnet") == '"192.168.2.0/24"'

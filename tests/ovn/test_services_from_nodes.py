"""A node's own processes reach Services by OVN: by the route that `init-node --service-subnet` gives to the node's own port."""

from __future__ import annotations

import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner

from tests.lab.network.gateways import kept
from tests.lab.node.node import Node
from tests.lab.ovn.shared_gateway import asks, serving
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.base.gateways import read_gateways
from userspace_cni.cli.main import userspace_cni

CLUSTER = "10.244.0.0/16,fd00:10:244::/48"
SERVICES = "10.96.0.0/16,fd00:10:96::/112"
POD = ("10.244.2.5", "fd00:10:244:2::5")
VIPS = ("10.96.0.10", "fd00:10:96::10")
MAC = "0a:58:0a:f4:02:05"


def test_a_process_of_one_node_reaches_a_pod_of_the_other(tmp_path: Path) -> None:
    """By the Service's address of each family, whose load balancer the node's switch has."""
    with TemporaryDirectory(prefix="ovn-") as directory, TwoChassis(Path(directory)) as ovn:
        set_up(ovn, tmp_path)
        ovn.nbctl("lsp-add", "n2", "web", "--", "lsp-set-addresses", "web", f"{MAC} {' '.join(POD)}")
        for name, vip, pod in (("four", VIPS[0], f"{POD[0]}:8080"), ("six", f"[{VIPS[1]}]", f"[{POD[1]}]:8080")):
            ovn.nbctl("lb-add", name, f"{vip}:80", pod)
            row = ovn.nbctl("--bare", "--columns=_uuid", "find", "Load_Balancer", f"name={name}")
            ovn.nbctl("add", "Load_Balancer_Group", "cluster-load-balancers", "load_balancer", row)
        (gateway,) = read_gateways(tomllib.loads((tmp_path / "n1/config.toml").read_text())["gateway"], "the settings")
        node = Node(Path(directory) / "n", ovn.switches["n1"])
        with ovn.pod("n2", "web", "uid", f"{POD[0]}/24", MAC, vhost=False) as pod, kept(node, ovn.netns("n1")) as site:
            inside(pod, "ip", "address", "add", f"{POD[1]}/64", "dev", "eth0", "nodad")
            for family, router in (("-4", "10.244.2.1"), ("-6", "fd00:10:244:2::1")):
                inside(pod, "ip", family, "route", "add", "default", "via", router)
            assert site.keep(gateway) == {"k8s-n1": ""}
            with serving(pod, 8080) as clients:
                for vip in VIPS:
                    wait_until(lambda vip=vip: asks(site.place, vip, 80), what=f"{vip} answers")  # type: ignore[misc]
            assert set(clients) == {"10.244.1.2", "fd00:10:244:1::2"}


def set_up(ovn: TwoChassis, directory: Path) -> None:
    """Make the cluster's rows, and those of both nodes."""
    for number, name in enumerate(NODES, 1):
        own = directory / name
        own.mkdir()
        (own / "config.toml").touch()
        there = {
            **environ(own),
            "USERSPACE_CNI_OVSDB": ovn.switches[name].ovsdb,
            "OVS_RUNDIR": ovn.switches[name].rundir,
            "USERSPACE_CNI_SWITCH_NETNS": ovn.netns(name),
            "USERSPACE_CNI_CONFIG": str(own / "config.toml"),
            "USERSPACE_CNI_OVN_NB": ovn.remote("nb"),
            "USERSPACE_CNI_OVN_SB": ovn.remote("sb"),
        }
        subnets = f"10.244.{number}.0/24,fd00:10:244:{number}::/64"
        options = ("--node", name, "--subnet", subnets, "--encap-ip", f"10.99.0.{number}", "--service-subnet", SERVICES)
        for words in (("init-cluster", "--cluster-subnet", CLUSTER), ("init-node", *options)):
            done = CliRunner(env=there).invoke(userspace_cni, ["ovn", *words])
            assert (done.exit_code, "no bridge of this node" in done.output) == (0, False), done.output

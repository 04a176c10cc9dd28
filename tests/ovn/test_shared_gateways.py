"""A gateway that shares its node's address, whole: rows of `init-gateway --shared`, and the node's side of `gateway-helper`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner

from tests.lab.kube.apiserver import ApiServer
from tests.lab.ovn.shared_gateway import BRIDGE, NODE, NODE_PORT, OUTSIDE, SERVED, asks, bridge_with_outside, pings, serving
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.cli.main import userspace_cni

CLUSTER = "10.244.0.0/16,fd00:10:244::/56"


def test_two_nodes_leave_by_one_address(tmp_path: Path) -> None:
    """Pods of both nodes reach outside as the node with the gateway, which reaches it, too, and is reached; and a NodePort leads
    from outside to a pod of either node."""
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="ovn-"))
        ovn = stack.enter_context(TwoChassis(Path(directory)))
        outside = stack.enter_context(bridge_with_outside(ovn.switches["n1"]))
        api = stack.enter_context(ApiServer())
        there = {**environ(tmp_path), "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(tmp_path), "USERSPACE_CNI_NODE_NAME": "n1"}
        run_on(ovn, "n1", there, "init-cluster", "--cluster-subnet", CLUSTER)
        for number, name in enumerate(NODES, 1):
            subnet = f"10.244.{number}.0/24,fd00:10:244:{number}::/64"
            run_on(ovn, name, there, "init-node", "--no-chassis", "--node", name, "--subnet", subnet)
        pods = [stack.enter_context(a_pod(ovn, number)) for number in (1, 2)]
        own = ",".join(f"{address}/{size}" for address, size in zip(NODE, (24, 64), strict=True))
        gateway = ("init-gateway", "--node", "n1", "--bridge", BRIDGE, "--ip", own, "--next-hop", ",".join(OUTSIDE), "--shared")
        run_on(ovn, "n1", there, *gateway)
        for number, (label, vip) in enumerate((("4", NODE[0]), ("6", f"[{NODE[1]}]"))):
            backends = ",".join(f"{(address(each)[0], f'[{address(each)[1]}]')[number]}:{SERVED}" for each in (1, 2))
            ovn.nbctl("lb-add", f"lb{label}", f"{vip}:{NODE_PORT}", backends)
            row = ovn.nbctl("--bare", "--columns=_uuid", "find", "Load_Balancer", f"name=lb{label}")
            ovn.nbctl("add", "Load_Balancer_Group", "gateway-load-balancers", "load_balancer", row)
        said = [{"name": "web", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT}]
        spec = {"type": "NodePort", "clusterIP": "10.96.0.9", "ports": said}
        api.add({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "d"}, "spec": spec}, "d")
        stack.enter_context(helper(ovn, there))
        places = {"the pod of n1": pods[0], "the pod of n2": pods[1], "the node n1": ovn.netns("n1")}
        for family in (0, 1):
            for who, place in places.items():
                wait_until(partial(pings, place, OUTSIDE[family]), what=f"{who} reaches {OUTSIDE[family]}")
            assert pings(outside, NODE[family])
        with serving(outside, 7000) as clients:
            assert all(asks(place, OUTSIDE[family], 7000) for family in (0, 1) for place in places.values())
            assert clients == [NODE[0]] * 3 + [NODE[1]] * 3
        with serving(pods[0], SERVED) as near, serving(pods[1], SERVED) as far:
            for vip in NODE:
                near.clear()
                far.clear()
                wait_until(lambda vip=vip: asks(outside, vip, NODE_PORT) and near and far, what=f"{vip} leads to both pods")  # type: ignore[misc]


def run_on(ovn: TwoChassis, node: str, environment: dict[str, str], *arguments: str) -> None:
    """Run a command of `ovn` as on the node."""
    databases = {"USERSPACE_CNI_OVN_NB": ovn.remote("nb"), "USERSPACE_CNI_OVN_SB": ovn.remote("sb")}
    done = CliRunner(env=environment | databases | of_switch(ovn, node)).invoke(userspace_cni, ["ovn", *arguments])
    assert done.exit_code == 0, done.output


def of_switch(ovn: TwoChassis, node: str) -> dict[str, str]:
    """Where the node's switch is."""
    switch = ovn.switches[node]
    return {
        "USERSPACE_CNI_OVSDB": switch.ovsdb,
        "OVS_RUNDIR": switch.rundir,
        "USERSPACE_CNI_SWITCH_NETNS": switch.netns,
    }


def address(number: int) -> tuple[str, str]:
    """Those of the pod of a node."""
    return f"10.244.{number}.5", f"fd00:10:244:{number}::5"


@contextmanager
def a_pod(ovn: TwoChassis, number: int) -> Iterator[str]:
    """A pod of the node of this number, with a veth."""
    node, mac, own = f"n{number}", f"0a:58:00:00:00:0{number}", address(number)
    ovn.nbctl("lsp-add", node, f"d_p{number}", "--", "lsp-set-addresses", f"d_p{number}", f"{mac} {' '.join(own)}")
    with ovn.pod(node, f"d_p{number}", "uid", f"{own[0]}/24", mac, vhost=False) as pod:
        inside(pod, "ip", "address", "add", f"{own[1]}/64", "dev", "eth0", "nodad")
        inside(pod, "ip", "route", "add", "default", "via", f"10.244.{number}.1")
        inside(pod, "ip", "-6", "route", "add", "default", "via", f"fd00:10:244:{number}::1")
        yield pod


@contextmanager
def helper(ovn: TwoChassis, environment: dict[str, str]) -> Iterator[None]:
    """`gateway-helper` on n1, until it is told to end."""
    argv = [sys.executable, "-m", "userspace_cni", "ovn", "gateway-helper", "--bridge", BRIDGE]
    with subprocess.Popen(
        argv, env=os.environ | environment | of_switch(ovn, "n1"), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
        finally:
            process.kill()

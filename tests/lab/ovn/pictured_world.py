"""A node of the lab with one of everything that `map` draws, and the pictures of it that the pages have.

As root, with OVN and Chromium, `python -m tests.lab.ovn.pictured_world docs/pictures` writes `map.svg` and `map-page.png`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.lab.frames.taps import TapProcess
from tests.lab.kube.pods import Pod
from tests.lab.network.outside import wired
from tests.lab.node.agent import get, running
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node, clean
from tests.lab.ovn.central import INTEGRATION, Ovn
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

NAME: Final = "worker-1"
SPECS: Final = 3
"""How many specs of the node's own network its settings have."""
_SETTINGS: Final = """
[[provider_network]]
name = "net1"
interface = "nic0"

[[gateway]]
bridge = "br-net1"
addresses = ["10.56.0.1/24"]
sole = true

[[mirror]]
name = "watch"
bridge = "br-net1"
output = "uc-mirror0"
select = "joined"

[[rule]]
namespaces = ["*"]
bridges = ["br-net1"]
mirrors = ["watch"]
logical_switches = ["shop"]
"""
_BLUE: Final = ("web-5c9d8f7b6-k2x4z", "web-5c9d8f7b6-p9q7m", "database-0")
_LOGICAL: Final = ("cart", "checkout")


@dataclass(frozen=True)
class PicturedWorld:
    """The node, with its switch and OVN."""

    node: Node
    switch: Switch
    ovn: Ovn
    sandboxes: dict[str, str]

    def map(self, *options: str, **environ: str) -> str:
        """What `map` prints."""
        done = run_command({**self.node.environ, **environ}, "map", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def pictured_world() -> Iterator[PicturedWorld]:
    """The node, with its pods attached."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="pw-")))
        (place / "o").mkdir()
        switch = stack.enter_context(Switch())
        ovn = stack.enter_context(Ovn(switch, place / "o"))
        stack.enter_context(wired(switch.netns))
        settings = {
            "USERSPACE_CNI_NODE_NAME": NAME,
            "USERSPACE_CNI_OVN_NB": ovn.remote("nb"),
            "USERSPACE_CNI_OVN_RUNDIR": ovn.rundir,
        }
        node = stack.enter_context(clean(Node(place / "n", switch, settings)))
        Path(node.environ["USERSPACE_CNI_CONFIG"]).write_text(_SETTINGS)
        agent = stack.enter_context(running(node))
        wait_until(lambda: _holding(agent.socket) == SPECS, what="the node's own network is as its settings say")
        world = PicturedWorld(node, switch, ovn, {})
        _attach_blue(world, stack)
        _attach_green(world, stack)
        _attach_logical(world, stack)
        yield world
        switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "external_ids", "ovn-bridge-mappings")


def _holding(socket: str) -> int:
    _, body = get(socket, "/api/v1/network")
    return sum(each["ready"] for each in json.loads(body)["specs"])


def _attach(world: PicturedWorld, stack: ExitStack, network: dict[str, Any], name: str) -> None:
    """A pod with one interface, which is detached at the end."""
    sandbox, pod = stack.enter_context(netns()), Pod(name, "shop" if name in _LOGICAL else "default")
    container = f"{len(world.sandboxes) + 1:04x}" + "d" * 60
    world.node.empty_dir(pod.uid)
    added = world.node.run("ADD", network, sandbox, container, CNI_ARGS=pod.args)
    assert added.status == 0, added.stdout
    stack.callback(world.node.run, "DEL", network, sandbox, container)
    world.sandboxes[name] = sandbox


def _network(world: PicturedWorld, name: str, host: dict[str, Any], subnet: str, **keys: Any) -> dict[str, Any]:
    ipam = world.node.host_local(subnet)
    return {"cniVersion": "1.0.0", "name": name, "type": "userspace", "host": host, "ipam": ipam, **keys}


def _attach_blue(world: PicturedWorld, stack: ExitStack) -> None:
    """Ordinary pods of VLAN 100, one of which is mirrored and limited; one pings another."""
    host = {"iftype": "veth", "port": "af_packet", "bridge": {"bridgeName": "br-net1", "vlanId": 100}}
    network = _network(world, "blue", host, "10.100.0.0/24")
    limited = {**network, "bandwidth": {"ingressRate": 100_000_000, "egressRate": 50_000_000}, "mirrors": [{"name": "watch"}]}
    for number, name in enumerate(_BLUE):
        _attach(world, stack, network if number else limited, name)
    command = ["ping", "-i", "0.002", "-s", "1400", "10.100.0.3"]
    pinging = subprocess.Popen(["nsenter", f"--net={world.sandboxes[_BLUE[0]]}", *command], stdout=subprocess.DEVNULL)
    stack.callback(pinging.wait)
    stack.callback(pinging.terminate)


def _attach_green(world: PicturedWorld, stack: ExitStack) -> None:
    """Two DPDK pods of VLAN 200, of which one has its application."""
    host = {"iftype": "vhostuser", "vhost": {"mode": "server"}, "bridge": {"bridgeName": "br-net1", "vlanId": 200}}
    network = _network(world, "green", host, "10.200.0.0/24")
    for name in ("packet-gateway-0", "packet-gateway-1"):
        _attach(world, stack, network, name)
    [shown, *_] = _shown(world, "packet-gateway-0")
    tap = stack.enter_context(TapProcess(world.sandboxes["packet-gateway-0"], shown["socket"]["host"]))
    tap.until("ready")


def _shown(world: PicturedWorld, pod: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_command(world.node.environ, "show", pod, "--json").stdout)
    return found


def _attach_logical(world: PicturedWorld, stack: ExitStack) -> None:
    """Pods of a logical switch, which a router joins with what is behind the uplink."""
    nb = world.ovn.nbctl
    nb("ls-add", "shop", "--", "lr-add", "campus", "--", "lrp-add", "campus", "campus-shop", "0a:58:0a:10:01:01", "10.16.1.1/24")
    nb("lsp-add", "shop", "shop-campus", "--", "lsp-set-type", "shop-campus", "router")
    nb("lsp-set-addresses", "shop-campus", "router", "--", "lsp-set-options", "shop-campus", "router-port=campus-shop")
    nb("lr-route-add", "campus", "0.0.0.0/0", "10.16.1.254")
    nb(
        "lsp-add",
        "shop",
        "shop-net1",
        "--",
        "lsp-set-type",
        "shop-net1",
        "localnet",
        "--",
        "lsp-set-addresses",
        "shop-net1",
        "unknown",
    )
    nb("lsp-set-options", "shop-net1", "network_name=net1")
    for name in _LOGICAL:
        nb("lsp-add", "shop", f"shop_{name}", "--", "lsp-set-addresses", f"shop_{name}", "unknown")
    world.switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings=net1:br-net1")
    wait_until(lambda: world.switch.bridge(INTEGRATION), what="OVN's bridge")
    network = _network(world, "shop", {"iftype": "veth"}, "10.16.1.0/24", ovn={"switch": "shop"})
    for name in _LOGICAL:
        _attach(world, stack, network, name)
    wait_until(lambda: world.switch.rows("Interface", "type=patch"), what="OVN's patch between the bridges")


def draw(world: PicturedWorld, directory: Path) -> None:
    """Write the pictures of the node: of the command, and of its page where a pod is pointed at."""
    from tests.lab.browser.chromium import Chromium

    (directory / "map.svg").write_text(world.map(), encoding="utf-8")
    with TemporaryDirectory() as made, Chromium(1440, 800) as browser:
        page = Path(made) / "node.html"
        world.map("--html", str(page))
        browser.open(page)
        title = f"ports.find(([id]) => facts.items[id].title === {_BLUE[0]!r})[0]"
        x, y = browser.evaluate(
            f"(() => {{ const box = items.get({title}).getBoundingClientRect(); return [box.x + 20, box.y + 8] }})()"
        )
        browser.point(x, y)
        (directory / "map-page.png").write_bytes(browser.photograph())


if __name__ == "__main__":
    with pictured_world() as drawn:
        draw(drawn, Path(sys.argv[1]))

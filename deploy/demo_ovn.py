"""Two nodes from nothing to pods that reach each other over OVN, by the commands that docs/ovn.md names, and a packet's way.

The demo does by hand what Debian's services, a scheduler, a runtime and a kubelet do: OVN's daemons, pods given to nodes, network
namespaces, CNI calls. It prints the rows that each step has made. It checks every fact that it prints, and ends with exit code 1
and the name of one that does not hold. It leaves nothing behind, however it ends.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace

from deploy.demo_node import (
    COMMAND,
    MAPPED_DIR,
    WAIT_S,
    Agent,
    Pod,
    check,
    execute,
    in_pod,
    mounts,
    names,
    pod,
    processes,
    running,
    switch,
    wait_for,
)
from deploy.demo_ovn_nodes import (
    CLUSTER_SUBNET,
    INTEGRATION,
    NAMESPACE,
    NIC,
    OvnDemo,
    OvnNode,
    answers,
    api_server,
    controller,
    daemon,
    databases,
    pings,
    schedule,
    wire,
)
from deploy.demo_run import perform, show_output, show_prompt, tell_line
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import downward_file
from userspace_cni.cli import view

PAGES = {"pages": 256, "socket_mem": 128}
"""Of each switch: hugepages, and MiB of them that it takes at its start."""
TOLD = re.compile(r"ingress\(|output to|ttl--|eth\.(src|dst) = ")
"""Lines of a trace that are shown."""
KEYS = ("iface-id", "iface-id-ver", "ovn-installed")
"""What ties a row of Interface to a logical port: its name, the pod's UID, and ovn-controller's word that it is in force."""
KINDS = ("vhostuser", "veth")
"""Of the two pods' interfaces."""


@dataclass(frozen=True)
class Attached:
    """A pod of a node, and what the controller has given it."""

    pod: Pod
    node: OvnNode
    kind: str
    address: str
    mac: str
    gateway: str

    @property
    def logical_port(self) -> str:
        return f"{NAMESPACE}_{self.pod.name}"


def show_command(node: OvnNode, *args: str) -> str:
    """Run a command of this project on the node, and show it with its output, which is returned."""
    with view.progress(f"userspace-cni {' '.join(args[:2])}"):
        said = node.command(*args)
    show_prompt(f"userspace-cni {' '.join(args)}", f"on {node.name}")
    show_output(said)
    return said


def make_nodes(demo: OvnDemo, stack: ExitStack) -> list[Agent]:
    """The machines: a switch, an agent and an ovn-controller each, a wire, and the NICs on bridges."""
    for node in demo.nodes:
        stack.enter_context(switch(node, **PAGES))
        stack.enter_context(controller(node))
    wire(demo.nodes)
    agents = []
    for node in demo.nodes:
        node.command("install", "--bin-dir", str(node.shim.parent))
        agents.append(stack.enter_context(Agent(node)))
        agents[-1].start()
    for node in demo.nodes:
        show_command(node, "nic-to-bridge", NIC, "--persist")
    one, other = demo.nodes
    wait_for(lambda: answers(one.netns, other.tunnel_address), f"{other.name} to answer {one.name}")
    tell_line(f"{one.name} ({one.tunnel_address}) and {other.name} ({other.tunnel_address}) reach each other by their bridges.")
    return agents


def make_cluster(demo: OvnDemo) -> None:
    """Say to each node where the databases are, and make what the cluster has once."""
    for node in demo.nodes:
        keys = {"hostname": node.name, "ovn-nb": demo.remote("nb"), "ovn-remote": demo.remote("sb")}
        ids = [f"external_ids:{key}={value}" for key, value in keys.items()]
        node.vsctl("set", "Open_vSwitch", ".", *ids)
        show_prompt(f"ovs-vsctl set Open_vSwitch . {' '.join(ids)}", f"on {node.name}")
    show_command(demo.nodes[0], "ovn", "init-cluster", "--cluster-subnet", CLUSTER_SUBNET)


def make_chassis(demo: OvnDemo) -> None:
    """Make each node a chassis, with its own switch and its own port on it."""
    for node in demo.nodes:
        options = ("--node", node.name, "--subnet", node.subnet, "--encap-ip", node.tunnel_address)
        show_command(node, "ovn", "init-node", *options)
    chassis = ("--bare", "--columns=hostname", "list", "Chassis")
    wait_for(lambda: sorted(demo.sbctl(*chassis).split()) == [each.name for each in demo.nodes], "two chassis")
    for node in demo.nodes:
        wait_for(lambda node=node: is_up(demo, f"k8s-{node.name}"), f"the port of {node.name} itself")  # type: ignore[misc]
    show_prompt("ovn-sbctl show")
    show_output(demo.sbctl("show"))


def is_up(demo: OvnDemo, logical_port: str) -> bool:
    """Whether OVN says that a chassis has the logical port."""
    return demo.nbctl("get", "Logical_Switch_Port", logical_port, "up") == "true"


def watch_pods(demo: OvnDemo, api: ApiServer, pods: list[Pod]) -> list[Attached]:
    """Create the pods, and show what the controller writes: rows, and an annotation of each pod."""
    found = []
    for each, node in zip(pods, demo.nodes, strict=True):
        schedule(api, each, node)
    for each, node, kind in zip(pods, demo.nodes, KINDS, strict=True):
        wait_for(lambda each=each: "ovn" in api.annotations(NAMESPACE, each.name), f"the annotation of {each.name}")  # type: ignore[misc]
        said = json.loads(api.annotations(NAMESPACE, each.name)["ovn"])
        made = Attached(each, node, kind, said["ip_address"], said["mac_address"], said["gateway_ip"])
        show_prompt(f"kubectl -n {NAMESPACE} get pod {each.name}", "its node, and its annotation ovn")
        show_output(f"nodeName: {node.name}\novn: {json.dumps(said)}")
        columns = "name,addresses,port_security,options,external_ids"
        show_prompt(f"ovn-nbctl --columns={columns} list Logical_Switch_Port {made.logical_port}")
        show_output(demo.nbctl(f"--columns={columns}", "list", "Logical_Switch_Port", made.logical_port))
        found.append(made)
    return found


def attach(demo: OvnDemo, attached: list[Attached]) -> None:
    """ADD of both pods, and the rows of their interfaces."""
    for each in attached:
        call = each.node.cni("ADD", each.pod, network=each.node.logical(each.kind))
        [address] = [ip["address"] for ip in call.result["ips"]]
        check(address == each.address, f"{each.pod.name} got {address}, and its annotation says {each.address}")
        tell_line(f"{each.pod.name}, by {each.kind}: ADD answered after ", (f"{call.ms:.0f} ms", "green"), f" with {address}")
        port = each.node.port_of(each.pod)
        argv = ("get", "Interface", port, "type", *(f"external_ids:{key}" for key in KEYS))
        show_prompt(f"ovs-vsctl {' '.join(argv)}", f"on {each.node.name}")
        shown = each.node.vsctl(*argv)
        check(shown.split()[-1] == '"true"', f"OVN has not installed the port of {each.pod.name}: {shown}")
        show_output(shown)
        wait_for(lambda each=each: is_up(demo, each.logical_port), f"{each.logical_port} to be up")  # type: ignore[misc]


def ping(api: ApiServer, attached: list[Attached], stack: ExitStack) -> None:
    """From pod to pod, and from the node of one to the other's pod."""
    one, other = attached
    podinfo = one.node.directory / "podinfo"  # what the kubelet makes of the pod's annotations
    podinfo.write_text(downward_file(api.annotations(NAMESPACE, one.pod.name)))
    tap = ("tap", "--annotations", str(podinfo), "--dir", MAPPED_DIR)
    stack.enter_context(running(one.pod, *in_pod(one.pod), COMMAND, *tap))
    enter = ["nsenter", f"--net={one.pod.netns}"]
    route = ["ip", "route", "replace", "default", "via", one.gateway]
    wait_for(lambda: execute([*enter, *route]).returncode == 0, f"the link of {one.pod.name}")
    tell_line(f"{one.pod.name} has no DPDK application here: userspace-cni tap makes a kernel link of its socket.\n")
    for name, netns, target in (
        (one.pod.name, str(one.pod.netns), other),
        (other.pod.name, str(other.pod.netns), one),
        (one.node.name, one.node.netns, other),
        (other.node.name, other.node.netns, one),
    ):
        address = target.address.partition("/")[0]
        wait_for(lambda netns=netns, address=address: answers(netns, address), f"{address} to answer {name}")  # type: ignore[misc]
        show_prompt(f"ping -c 3 {address}", f"in {name}, to {target.pod.name}")
        show_output(pings(netns, address))


def trace(attached: list[Attached]) -> None:
    """The packet's way as OVN has it, and as the switch of the first node has it."""
    one, other = attached
    argv = ("ovn", "trace", *(f"{NAMESPACE}/{each.pod.name}" for each in attached))
    lines = one.node.command(*argv).splitlines()
    show_prompt(
        f"userspace-cni {' '.join(argv)}",
        f"on {one.node.name}; of its {len(lines)} lines those that say where, and what changes:",
    )
    show_output("\n".join(line for line in lines if TOLD.search(line)))
    router = one.node.inside("ip", "neigh", "show", one.gateway).partition("lladdr ")[2].split()[0]
    source, target = (each.address.partition("/")[0] for each in attached)
    fields = (
        f"in_port={one.node.port_of(one.pod)},icmp,dl_src={one.mac},dl_dst={router},nw_src={source},nw_dst={target},nw_ttl=64"
    )
    found = one.node.openflow("ofproto/trace", INTEGRATION, fields)
    [actions] = re.findall(r"^Datapath actions: (.*)$", found, re.MULTILINE)
    check("tnl_push" in actions and other.node.tunnel_address in actions, f"the packet is not sent to {other.node.name}: {found}")
    show_prompt(
        f"ovs-appctl ofproto/trace {INTEGRATION} {fields}", f"on {one.node.name}; {len(found.splitlines())} lines, the last:"
    )
    show_output(f"Datapath actions: {actions}")
    tell_line(f"The switch puts a Geneve header before the packet and sends it to {other.node.tunnel_address}, by {NIC}.")


def look(demo: OvnDemo) -> None:
    """The state of the whole, and that nothing is wrong with it."""
    show_command(demo.nodes[0], "ovn", "status")
    for node in demo.nodes:
        show_prompt("userspace-cni ovn check", f"on {node.name}")
        found = node.told("ovn", "check")["findings"]
        check(not found, f"on {node.name} something is found: {found}")
        tell_line("nothing is found\n")


def detach(demo: OvnDemo, api: ApiServer, attached: list[Attached]) -> None:
    """DEL of both pods, and their end: ports, records and logical ports are gone."""
    for each in attached:
        call = each.node.cni("DEL", each.pod, network=each.node.logical(each.kind))
        ports = each.node.vsctl("list-ports", INTEGRATION).split()
        check(not each.node.port_of(each.pod), f"after DEL the port of {each.pod.name} is among {ports}")
        api.remove_pod(NAMESPACE, each.pod.name)
        tell_line(
            f"{each.pod.name}: DEL answered after {call.ms:.0f} ms; on {INTEGRATION} of {each.node.name}: {' '.join(ports)}"
        )
    gone = ("--bare", "--columns=name", "find", "Logical_Switch_Port", "external_ids:scope=pods")
    wait_for(lambda: not demo.nbctl(*gone), "the pods' logical ports to be removed")
    tell_line("Their logical ports are gone, too; the nodes' own are still there:\n")
    for node in demo.nodes:
        show_prompt(f"ovn-nbctl lsp-list {node.name}")
        show_output(demo.nbctl("lsp-list", node.name))
        records = [each for each in names(node.state / "attachments") if any(made.pod.container_id in each for made in attached)]
        check(not records, f"{node.name} has records of pods that have gone: {records}")


def draw(demo: OvnDemo, attached: list[Attached]) -> None:
    """A picture of what is there."""
    width = 32
    sides = []
    for each in attached:
        node = each.node
        sides.append(
            [
                f"{node.name}".center(width),
                f"+{'-' * (width - 2)}+",
                f"| {f'{each.pod.name}  {each.address}':<{width - 4}} |",
                f"| {f'  | {each.kind}':<{width - 4}} |",
                f"| {f'{INTEGRATION} -- {node.link} {node.subnet[:-4]}2':<{width - 4}} |",
                f"| {'  | Geneve':<{width - 4}} |",
                f"| {f'br-{NIC} {node.tunnel_address}':<{width - 4}} |",
                f"| {'  |':<{width - 4}} |",
                f"+--{NIC}{'-' * (width - 8)}+",
                f"   {'|':<{width - 3}}",
            ]
        )
    lines = ["   ".join(pair) for pair in zip(*sides, strict=True)]
    lines.append(f"   +{'-' * (width + 2)}+")
    one, other = (f"switch {node.name} ({node.subnet})" for node in demo.nodes)
    lines += ["", f"In OVN: {one} -- router", f"        {other} -- ovn_cluster_router"]
    show_output("\n".join(lines))


def play(demo: OvnDemo) -> None:
    """Run all steps of the demo."""
    with ExitStack() as stack:
        demo.announce("Two machines: on each an OVS-DPDK and an agent; the NIC on a bridge")
        api = stack.enter_context(api_server(demo))
        agents = make_nodes(demo, stack)

        demo.announce("The master: OVN's databases, ovn-northd, and what the cluster has once")
        stack.enter_context(databases(demo))
        make_cluster(demo)

        demo.announce("The nodes: a logical switch each, a chassis, and the node's own port on it")
        make_chassis(demo)

        demo.announce("The watcher: a logical port for each pod, and its addresses in an annotation")
        watcher = stack.enter_context(daemon(demo, "watch", COMMAND, "ovn", "watch", **demo.watcher))
        show_prompt("userspace-cni ovn watch")
        pods = [replace(stack.enter_context(pod(each, number)), ifname="eth0") for number, each in enumerate(demo.nodes)]
        attached = watch_pods(demo, api, pods)

        demo.announce("ADD: the runtime calls the plugin, which answers when OVN has installed the port")
        attach(demo, attached)
        draw(demo, attached)

        demo.announce("Ping: between the pods, and from each node to the pod of the other one")
        with ExitStack() as taps:
            ping(api, attached, taps)

            demo.announce("The way of a packet, and the state of it all")
            trace(attached)
            look(demo)

        demo.announce("DEL: the pods go")
        detach(demo, api, attached)
        watcher.send_signal(signal.SIGTERM)
        check(watcher.wait(WAIT_S) == 0, f"the watcher ended with {watcher.returncode} after SIGTERM")
        for agent in agents:
            check((code := agent.end(signal.SIGTERM)) == 0, f"an agent ended with {code} after SIGTERM")
    check(not processes(demo, switch=True), f"still running: {processes(demo, switch=True)}")
    check(not mounts(demo), f"still mounted: {mounts(demo)}")


if __name__ == "__main__":
    sys.exit(perform(OvnDemo, play, "Both switches are stopped, their huge pages are given back."))

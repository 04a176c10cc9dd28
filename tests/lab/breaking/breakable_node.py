"""A node on a switch, with an agent, an API server and pods whose applications run: whatever a break does to it is undone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from tests.agent.living import LiveNode, container
from tests.lab.breaking.pod_application import PodApplication
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.forked_node import run_command
from tests.lab.node.links import links
from tests.lab.node.node import clean
from tests.lab.runtimes.runtime import Call, netns
from tests.lab.switch.switch import Switch, pause, wait_until
from userspace_cni.attachment.steps import is_host_end

PodKind = Literal["app", "served", "plain"]
"""`app`: its application makes the socket; `served`: OVS makes it; `plain`: a kernel link."""
BRIDGE: Final = "br-test"
NODE: Final = "n1"


class RichPod(Pod):
    """A pod whose container may use hugepages, and that runs on the node."""

    def manifest(self) -> dict[str, Any]:
        made = super().manifest()
        [app] = made["spec"]["containers"]
        app["resources"] = {"limits": {"hugepages-2Mi": "64Mi", "memory": "64Mi"}}
        made["spec"]["nodeName"] = NODE
        made["status"] = {"phase": "Running"}
        return made


@dataclass
class RunningPod:
    """A pod with one interface, `net1`. `volume`: the directory of its socket; `application`: None where it has none."""

    pod: Pod
    netns: str
    container: str
    network: dict[str, Any]
    volume: Path
    application: PodApplication | None = None

    @property
    def name(self) -> str:
        return self.pod.name

    @property
    def port(self) -> str:
        """The name of its port and of its socket; that of a kernel port is its link's."""
        return f"{self.container[:12]}-net1"

    @property
    def socket(self) -> Path:
        return self.volume / self.port


@dataclass
class BreakableNode:
    """The node; what is registered in `end` is undone at its end, the latest first."""

    live: LiveNode
    api: ApiServer
    end: ExitStack
    pods: dict[str, RunningPod] = field(default_factory=dict)

    @property
    def switch(self) -> Switch:
        assert self.live.switch
        return self.live.switch

    def prepare(
        self, kind: PodKind, name: str = "", pod_class: type[Pod] = RichPod, volume: Mapping[str, Any] | None = None
    ) -> RunningPod:
        """A pod before its ADD: in the API, with a namespace, and with the volume for its socket."""
        given: Mapping[str, Any] = {"emptyDir": {}} if kind != "plain" and volume is None else volume or {}
        pod = pod_class(name or kind, volume=given)
        pod.create(self.api)
        directory = self.live.empty_dir(pod.uid) if given else self.live.directory
        made = RunningPod(pod, self.end.enter_context(netns()), container(len(self.pods) + 1), self.network(kind), directory)
        self.pods[pod.name] = made
        return made

    def network(self, kind: PodKind) -> dict[str, Any]:
        network = self.live.network("1.0.0", name=f"{kind}-net")
        if kind == "served":
            network["host"]["vhost"]["mode"] = "server"
        if kind == "plain":
            network["host"] = {"iftype": "veth", "bridge": {"bridgeName": BRIDGE}}
            network["ipam"] = self.live.host_local()
        return network

    def attach(self, pod: RunningPod) -> Call:
        """Its ADD; the answer."""
        return self.live.run("ADD", pod.network, pod.netns, pod.container, CNI_ARGS=pod.pod.args)

    def detach(self, pod: RunningPod) -> Call:
        """Its DEL; the answer."""
        return self.live.run("DEL", pod.network, pod.netns, pod.container, CNI_ARGS=pod.pod.args)

    def add_to_api(self, pod: Pod, node: str, network: str) -> None:
        """A pod that the API has on a node, with the annotation for Multus, and that no runtime has called us for."""
        made = pod.manifest()
        made["spec"]["nodeName"] = node
        if network:
            made["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/networks": network}
        self.api.add_pod(made)

    def listen(self, pod: RunningPod, name: str) -> None:
        """A process of the pod that listens in its directory, takes connections and says nothing."""
        pod.application = PodApplication(pod.netns, pod.volume / name, "silent")
        self.end.callback(pod.application.kill)
        wait_until((pod.volume / name).exists, what=f"a socket at {name}")

    def add(self, kind: PodKind, name: str = "", *, started: bool = True, pod_class: type[Pod] = RichPod) -> RunningPod:
        """A pod that is attached and, if `started`, has its application connected."""
        pod = self.prepare(kind, name, pod_class)
        done = self.attach(pod)
        assert done.status == 0, done.stdout
        if started and kind != "plain":
            self.start(pod, "server" if kind == "app" else "client")
        return pod

    def start(self, pod: RunningPod, role: Literal["client", "server"], *, connects: bool = True) -> None:
        """Start its application, and wait until it is connected."""
        pod.application = PodApplication(pod.netns, pod.socket, role)
        self.end.callback(pod.application.kill)
        application = pod.application

        def is_up() -> bool:
            assert application.runs
            return bool(self.switch.interface(pod.port).get("link_state") == "up")

        if connects:
            wait_until(is_up, what=f"{pod.name} connected")

    def in_pod(self, pod: RunningPod, script: str, *argv: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """A process in the pod's network namespace, until the end: a shell that runs `script` and waits, called with `argv`.

        `prefix`: a command that starts it.
        """
        shell = ["bash", "-c", f"{script}; read -r; :", *argv]
        process = subprocess.Popen(["nsenter", f"--net={pod.netns}", *prefix, *shell], stdin=subprocess.PIPE)
        self.end.callback(process.communicate)
        self.end.callback(process.kill)
        return process

    def kill_agent(self) -> None:
        """SIGKILL: nothing that is broken afterwards is repaired."""
        self.live.kill()

    def stop_agent(self) -> None:
        """SIGSTOP, until the end."""
        pause(self.live.pid)
        self.end.callback(os.kill, self.live.pid, signal.SIGCONT)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command on this node, as an administrator calls it."""
        return run_command({**self.live.environ, "CNI_PATH": str(self.live.bin)}, *arguments)

    def carry_out(self, words: Sequence[str]) -> None:
        """A command that a remedy names, at this node's own switch."""
        if words[0] == "ovs-vsctl":
            self.switch.vsctl(*words[1:])
        elif words[0] == "ovs-ofctl":
            place = f"unix:{self.switch.rundir}/{BRIDGE}.mgmt"
            argv = [place if word == BRIDGE else word for word in words]
            subprocess.run(argv, check=True, capture_output=True)
        else:
            done = self.command(*words[1:])
            assert done.returncode == 0, (words, done.stdout, done.stderr)

    def why(self, name: str) -> list[dict[str, Any]]:
        """The findings about all interfaces of this name, the cause first."""
        done = self.command("why", name, "--json")
        assert "Traceback" not in done.stderr, done.stderr
        return [finding for each in json.loads(done.stdout)["attachments"] for finding in each["findings"]]


@contextmanager
def breakable(switch: Switch, *kinds: PodKind) -> Iterator[BreakableNode]:
    """The node with a pod of each kind. Volumes are on another device than OVS's sockets, as on a real node."""
    with ExitStack() as end:
        directory = Path(end.enter_context(TemporaryDirectory(prefix="uc-")))
        live = end.enter_context(clean(LiveNode(directory / "n", switch)))
        assert isinstance(live, LiveNode)
        # the kernel removes them some time after the pods' namespaces, and the next node's pods have links of these names
        end.callback(wait_until, lambda: not any(map(is_host_end, links(switch.netns))), what="the pods' links to go")
        api = end.enter_context(ApiServer())
        live.kubelet.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(live.kubelet)], check=True)
        subprocess.run(["mount", "--make-shared", str(live.kubelet)], check=True)
        live.follow(api, NODE)
        end.callback(live.close)
        live.start()
        node = BreakableNode(live, api, end)
        for kind in kinds:
            node.add(kind)
        yield node

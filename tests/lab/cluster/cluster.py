"""A cluster of one node for tests: what an administrator does with it, and what can happen to nodes."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.lab.cluster import binaries
from tests.lab.cluster.control import NODE_NAME, Control
from tests.lab.cluster.machine import MachineError
from tests.lab.cluster.node import BOOT_ID, ClusterNode, give_back
from tests.lab.cluster.shape import Shape
from tests.lab.guests.roots import CACHE
from tests.lab.kube.pods import CONFIGURATION_DATA
from tests.lab.runtimes import agent_image
from tests.lab.runtimes.dockerfile import ROOT
from tests.lab.runtimes.images import write_image
from tests.lab.switch.switch import Switch, wait_until

AGENT = ROOT / "deploy" / "cluster"
"""What an administrator applies, a file or a directory for kustomize."""
CONTROLLER = AGENT / "overlays" / "controller"
NAMESPACE = "userspace-cni"
AGENT_LABEL = "app.kubernetes.io/name=userspace-cni"
RUNNING_S = 90.0
"""How long a test waits for what a node does; a loaded machine takes some seconds to start a pod."""
LEFT_S = 60.0
"""The same for what a pod leaves after its end."""
_PAUSE_S = 0.2
"""The pause between two calls of kubectl, which would take the core that the awaited work needs."""
_KUBECTL_S = 120.0
_SHOWN = 3000
_PAGES_BY_HAND = 256
_TOPS, _PREFIX, _LOCK = Path("/var/tmp"), "uc-cluster-", "lock"


class Cluster:
    """The control plane and one node; everything that they write is below the new directory `top`."""

    def __init__(self, top: Path, pages: int, shape: Shape | None = None) -> None:
        self.top = top
        programs = binaries.directory()
        self._images = [agent_image.archive(), top / "image.tar"]
        write_image(self._images[1])
        self.control = Control(top / "control", programs, shape or Shape())
        self.node = ClusterNode(top, self.control, programs, pages, [CACHE, ROOT])

    def start(self) -> None:
        """Start it; the node is Ready when this returns."""
        self.control.start()
        self.node.power_on(self._images)
        self.control.wait_serving()
        self.node.start_kubelet()
        self.wait_ready()

    def end(self) -> None:
        """End it; only its logs below `top` are left on the machine."""
        try:
            self.node.end()
        finally:
            self.control.end()

    # what an administrator does

    def kubectl(self, *arguments: str, told: str = "") -> str:
        """The output of kubectl; MachineError with its stderr. `told` is its stdin."""
        argv = self.control.kubectl(*arguments)
        done = subprocess.run(argv, input=told, capture_output=True, text=True, timeout=_KUBECTL_S, check=False)
        if done.returncode:
            raise MachineError(f"kubectl {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = RUNNING_S) -> Any:
        """The first true value of a condition that starts programs; AssertionError says that `what` did not happen."""
        return wait_until(condition, seconds, what, _PAUSE_S)

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list, as `kubectl get` has it in JSON; {} if there is none."""
        return dict(json.loads(self.kubectl("get", *arguments, "--ignore-not-found", "-o", "json") or "{}"))

    def apply(self, *manifests: Path | Mapping[str, Any]) -> None:
        """`kubectl apply`: -f of files, -k of directories, then the objects, all of which go to one process, in their order."""
        for path in (manifest for manifest in manifests if isinstance(manifest, Path)):
            self.kubectl("apply", "-k" if path.is_dir() else "-f", str(path))
        if objects := [manifest for manifest in manifests if not isinstance(manifest, Path)]:
            self.kubectl("apply", "-f", "-", told=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def delete(self, *arguments: str) -> None:
        """`kubectl delete`; returns when the objects are gone: for pods see `end_pods`."""
        self.kubectl("delete", *arguments)

    def end_pods(self, *names: str) -> None:
        """Tell the kubelet to end these pods of the namespace default, or all, and do not wait.

        What they have on the node goes at once; a kubelet of 1.20 reports their end to the API server every 10 s.
        """
        self.delete("pods", *(names or ("--all",)), "--grace-period=1", "--wait=false")

    def deploy(self) -> None:
        """Apply the agent's DaemonSet as it is written, and wait until its pod is Ready."""
        self.apply(AGENT)
        self.wait_agent()

    def deploy_controller(self) -> None:
        """Apply the overlay of the controller, and do not wait for it."""
        self.apply(CONTROLLER)

    def end_controller(self) -> None:
        """Delete what the overlay made, and the Lease, which an ending controller may have lost the right to release."""
        self.kubectl("delete", "-k", str(CONTROLLER), "--ignore-not-found", "--wait=false")
        self.delete("lease", "--all", f"--namespace={NAMESPACE}")

    def wait_agent(self) -> None:
        """Wait until the agent is Ready."""
        self.await_agent(is_ready, "the agent Ready")

    def await_agent(self, condition: Callable[[Mapping[str, Any]], Any], what: str) -> None:
        """Wait until the agent's pod is in this state; AssertionError has its pods, their containers' states and their events."""
        try:
            self.wait(lambda: condition(self.agent_pod()), what)
        except AssertionError as error:
            for pod in self.pods(AGENT_LABEL, NAMESPACE):
                name, status = pod["metadata"]["name"], pod.get("status", {})
                containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
                error.add_note(f"pod {name}, {status.get('phase')}: {json.dumps(containers)}")
                error.add_note("\n".join(self.events(name, NAMESPACE)))
            raise

    def roll_out(self) -> None:
        """Replace the agents as an administrator does; the new one is Ready when this returns."""
        self.begin_roll_out()
        self.end_roll_out()

    def begin_roll_out(self) -> None:
        """Tell the API server to replace the agents."""
        self.kubectl("rollout", "restart", *self._daemonset())

    def end_roll_out(self) -> None:
        """Wait until it is done."""
        self.kubectl("rollout", "status", *self._daemonset())
        self.wait_agent()

    def _daemonset(self) -> tuple[str, str]:
        [found] = self.get("daemonsets", "--all-namespaces", f"--selector={AGENT_LABEL}")["items"]
        return f"--namespace={found['metadata']['namespace']}", f"daemonset/{found['metadata']['name']}"

    def agent_pod(self) -> dict[str, Any]:
        """The agent's pod; {} if there is none, or more than one."""
        found = self.control.look("/api/v1/pods", labelSelector=AGENT_LABEL)["items"]
        return dict(found[0]) if len(found) == 1 else {}

    def agent(self, *command: str) -> str:
        """What a command of `userspace-cni` prints in the agent's container."""
        metadata = self.agent_pod()["metadata"]
        return self.exec(metadata["name"], "userspace-cni", *command, container="agent", namespace=metadata["namespace"])

    def wait_as_made(self) -> None:
        """Wait until `userspace-cni check` finds each attachment as it was made.

        It takes 3 s for one: while applications poll on every core, a check may be cut short, and is repeated.
        """
        said = ""

        def as_made() -> bool:
            nonlocal said
            try:
                said = self.agent("check")
            except MachineError as error:
                said = str(error)
            return not said

        try:
            self.wait(as_made, "no differences")
        except AssertionError as error:
            raise AssertionError(f"{error}: {said}") from error

    def join(self, *lists: Mapping[str, Any]) -> None:
        """Make each pod from now on join these networks, as eth1, eth2 and so on, by files in the node's net.d.

        containerd looks for a pod's networks there when it removes the pod, too: so the files stay until the pods are gone
        (`leave_nothing`).
        """
        self.node.join(*lists)

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        """A pod; {} if there is none."""
        return self.control.look(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def pods(self, selector: str, namespace: str = "default") -> list[dict[str, Any]]:
        """The pods that a label selector chooses."""
        return list(self.control.look(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"])

    def node_object(self) -> dict[str, Any]:
        """The Node; {} if there is none."""
        return self.control.look(f"/api/v1/nodes/{NODE_NAME}")

    def wait_running(self, *names: str, namespace: str = "default", seconds: float = RUNNING_S) -> None:
        """Wait until the pods are Running and Ready; AssertionError tells of their events."""
        for name in names:
            try:
                self.wait(lambda: is_ready(self.pod(name, namespace)), f"pod {name} Ready", seconds)  # noqa: B023 -- at once
            except AssertionError as error:
                raise AssertionError(f"{error}\n" + "\n".join(self.events(name, namespace))) from error

    def events(self, name: str, namespace: str = "default", kind: str = "") -> list[str]:
        """Events of the object, the oldest first: "REASON: message (count)"; without `kind` of all objects of the name."""
        found = self._events(namespace, f"involvedObject.name={name}" + (f",involvedObject.kind={kind}" if kind else ""))
        found.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return [f"{event['reason']}: {event.get('message', '')} ({event.get('count')})" for event in found]

    def reasoned(self, name: str, reason: str, namespace: str = "default") -> list[dict[str, Any]]:
        """The object's events with this reason."""
        return self._events(namespace, f"involvedObject.name={name},reason={reason}")

    def _events(self, namespace: str, chosen: str) -> list[dict[str, Any]]:
        return list(self.control.look(f"/api/v1/namespaces/{namespace}/events", fieldSelector=chosen)["items"])

    def exec(self, pod: str, *command: str, container: str = "", namespace: str = "default") -> str:
        chosen = [f"--container={container}"] if container else []
        return self.kubectl("exec", pod, f"--namespace={namespace}", *chosen, "--", *command)

    def logs(self, pod: str, namespace: str = "default", container: str = "") -> str:
        return self.kubectl("logs", pod, f"--namespace={namespace}", *([f"--container={container}"] if container else []))

    def note_of(self, pod: str, ifname: str = "eth1") -> dict[str, Any]:
        """What the pod's annotations say of the interface."""
        entries = json.loads(self.pod(pod)["metadata"]["annotations"][CONFIGURATION_DATA])
        [entry] = [entry for entry in entries if entry["ifName"] == ifname]
        return dict(entry)

    def port_of(self, pod: str, ifname: str = "eth1") -> str:
        """The pod's port on the switch, as its note says."""
        return f"{self.note_of(pod, ifname)['containerId'][:12]}-{ifname}"

    def wait_connected(self, pod: str, ifname: str = "eth1") -> None:
        """Wait until the pod's application is connected to the switch; AssertionError has what it printed."""
        port = self.port_of(pod, ifname)
        try:
            self.wait(lambda: self.switch.interface(port).get("link_state") == "up", f"{pod} connected")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.logs(pod)}") from error

    def wait_frames(self, pod: str, ports: int) -> None:
        """Wait until frames arrive at each of the ports of the pod's testpmd; AssertionError has the end of what it printed."""
        begun = self._received(pod)

        def more() -> bool:
            now = self._received(pod)
            return len(now) == ports and all(count > begun.get(port, 0) for port, count in now.items())

        try:
            self.wait(more, f"frames at {ports} ports of {pod}")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.logs(pod)[-_SHOWN:]}") from error

    def _received(self, pod: str) -> dict[str, int]:
        return {port: int(count) for port, count in re.findall(r"port (\d+) .*\n *RX-packets: (\d+)", self.logs(pod))}

    def leave_nothing(self) -> None:
        """Delete all Deployments and pods of the namespace default, then the
        networks, and assert that nothing of the pods is left.
        """
        # A ReplicaSet would make new pods while the old ones are deleted
        self.delete("deployments,replicasets", "--all", "--cascade=orphan")
        self.end_pods()
        try:
            self.wait(lambda: not self.node.leftovers(), "nothing left of the pods")
        except AssertionError as error:
            raise AssertionError(f"{error}: {json.dumps(self.node.leftovers(), indent=1)}") from error
        finally:
            self.delete("pods", "--all", "--force", "--grace-period=0")
            self.node.join()

    # what happens to nodes

    @property
    def switch(self) -> Switch:
        """The node's OVS-DPDK as it was started last."""
        return self.node.switch

    def node_shell(self, *command: str) -> str:
        """What a command prints on the node, outside of any container."""
        return self.node.machine.run(*command)

    def path(self, path: str) -> Path:
        """A file of the node as the test opens it."""
        return self.node.machine.path(path)

    def wait_ready(self, seconds: float = RUNNING_S) -> None:
        """Wait until the node is Ready."""
        self.wait(lambda: is_ready(self.node_object()), f"node Ready; see {self.node.top}/kubelet.log", seconds)

    def kill_container(self, pod: str, container: str) -> None:
        """SIGKILL for the container's first process, and wait until the kubelet has started it again."""
        before = self._container(pod, container)
        task = before["containerID"].removeprefix("containerd://")
        self.node_shell("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", task)
        self.wait(lambda: self._runs_again(pod, before), f"container {container} of {pod} started again")

    @contextmanager
    def paused(self, pod: str, container: str) -> Iterator[None]:
        """Freeze the container for the block, because applications that poll on every core leave no time to other processes.

        runc gives up ("unable to freeze") when the container's threads do not stop within some milliseconds.
        """
        task = self._container(pod, container)["containerID"].removeprefix("containerd://")
        pause = ("ctr", "--namespace=k8s.io", "tasks", "pause", task)
        self.wait(lambda: self.node.machine.attempt(*pause).returncode == 0, f"container {container} of {pod} frozen")
        try:
            yield
        finally:
            self.node_shell("ctr", "--namespace=k8s.io", "tasks", "resume", task)

    def _runs_again(self, pod: str, before: Mapping[str, Any]) -> bool:
        now = self._container(pod, before["name"])
        return bool(now["restartCount"] > before["restartCount"] and now["ready"])

    def _container(self, pod: str, container: str) -> dict[str, Any]:
        statuses = self.pod(pod)["status"]["containerStatuses"]
        [status] = [status for status in statuses if status["name"] == container]
        return dict(status)

    def restart_kubelet(self) -> None:
        """Stop the kubelet in an orderly way, and start it."""
        self.node.kubelet.stop()
        self.node.start_kubelet()

    def kill(self, *daemons: str) -> None:
        """SIGKILL to "kubelet" and "containerd", as named; `start_daemons` starts them."""
        for name in daemons:
            {"kubelet": self.node.kubelet, "containerd": self.node.containerd}[name].kill()

    def start_daemons(self) -> None:
        """Start containerd and kubelet, unless they run."""
        if not self.node.containerd.runs():
            self.node.start_containerd()
        if not self.node.kubelet.runs():
            self.node.start_kubelet()

    def reboot(self) -> None:
        """Cut the node's power and restore it: processes, mounts, network and /run are gone, and the boot id is new.

        When this returns, the API server knows of it and the node is Ready; what it says of pods may be of the former boot.
        """
        self.node.power_off()
        self.node.power_on()
        self.node.start_kubelet()
        boot = self.path(BOOT_ID).read_text().strip()
        told = lambda: self.node_object()["status"]["nodeInfo"]["bootID"] == boot  # noqa: E731
        wait_until(told, RUNNING_S, f"the kubelet to report boot {boot}")
        self.wait_ready()


def is_ready(thing: Mapping[str, Any]) -> bool:
    """Whether a pod or a node has the condition Ready."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@contextmanager
def one_cluster(pages: int, shape: Shape | None = None) -> Iterator[Cluster]:
    """A cluster that is Ready, with `pages` hugepages of 2 MiB for pods."""
    with own_top() as top:
        made = Cluster(top, pages, shape)
        try:
            made.start()
            yield made
        finally:
            made.end()


@contextmanager
def own_top() -> Iterator[Path]:
    """A directory for a cluster; what clusters left whose process was killed is removed first."""
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with ExitStack() as ending:
        with (CACHE / "cluster.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            for lock in _TOPS.glob(f"{_PREFIX}*/{_LOCK}"):
                _remove_dead(lock)
            top = Path(mkdtemp(prefix=_PREFIX, dir=_TOPS))
            ending.callback(shutil.rmtree, top)
            mine = ending.enter_context((top / _LOCK).open("w"))
            fcntl.flock(mine, fcntl.LOCK_EX)
        yield top


def _remove_dead(lock: Path) -> None:
    """Remove the cgroups, memory and files of a cluster, unless the process lives that has `lock`.

    The rest ended with that process.
    """
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        give_back(lock.parent)
        shutil.rmtree(lock.parent)


def main() -> None:
    """Start a cluster with the agent, print how to use it, and end it when stdin ends."""
    with one_cluster(_PAGES_BY_HAND) as made:
        made.deploy()
        print("kubectl:", shlex.join(made.control.kubectl()))
        print("on the node:", shlex.join(made.node.machine.command("bash")))
        print("logs:", made.top, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

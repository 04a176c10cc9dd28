"""A node whose agent is a driver of devices, with the parts around it: API server, scheduler and kubelet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.agent.living import LiveNode
from tests.cni.spec import switch_of
from tests.lab.dra.dra_kubelet import DraKubelet
from tests.lab.dra.scheduled_claims import Given, Scheduler
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from userspace_cni.dra.device_names import DRIVER, device_name

BRIDGE = "br-dev"
KIND = {"apiVersion": "userspace-cni.io/v1alpha1", "kind": "InterfaceParameters"}


class ClaimingNode:
    """The node with a bridge of its administrator's, whose agent is not started yet; `claiming` makes it."""

    def __init__(self, live: LiveNode, api: ApiServer) -> None:
        self.live, self.api = live, api
        self.scheduler = Scheduler(api)
        self.kubelet = DraKubelet(live.kubelet, live.directory / "dra_manager_state", self.scheduler.read)
        live.settings |= {"USERSPACE_CNI_DRA": "true"}
        live.follow(api)
        self.add_bridge(BRIDGE)

    def add_bridge(self, name: str) -> None:
        switch_of(self.live).vsctl("add-br", name, "--", "set", "Bridge", name, "datapath_type=netdev")

    def start(self) -> None:
        """Start the agent, and wait until the kubelet may call it."""
        self.live.start()
        self.kubelet.await_driver(DRIVER)

    def pod(self, name: str = "app", namespace: str = "default") -> Pod:
        """A new pod that the API server has."""
        pod = Pod(name, namespace)
        pod.create(self.api)
        return pod

    def claim(self, name: str, pod: Pod, *bridges: str, parameters: Mapping[str, Any] | None = None) -> str:
        """A claim of a device of each of these bridges, by default of one, that is allocated to the pod; its UID."""
        shares = Given(
            [device_name(each) for each in bridges or (BRIDGE,)], shares=[f"{number:04x}" for number in range(len(bridges) or 1)]
        )
        return self.scheduler.claim(name, pod, shares, parameters={**KIND, **parameters} if parameters else None)

    def ports(self, bridge: str = BRIDGE) -> list[str]:
        """Names of the ports of claims on the bridge."""
        rows = {name: switch_of(self.live).interface(name) for name in switch_of(self.live).ports(bridge)}
        return [name for name, row in rows.items() if row["external_ids"].get("owner-kind") == "claim"]

    def require_nothing_left(self) -> None:
        """Neither the node, nor the kubelet's memory, has anything of any claim."""
        left = {kind: found for kind, found in self.live.leftovers().items() if (kind, found) != ("bridges", [BRIDGE])}
        assert (left, self.kubelet.remembers()) == ({}, [])


@contextmanager
def claiming(live: LiveNode) -> Iterator[ClaimingNode]:
    """The parts around this node, ended in the end; its kubelet runs."""
    with ApiServer() as api:
        node = ClaimingNode(live, api)
        with node.kubelet:
            yield node

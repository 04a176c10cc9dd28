"""Pods of both kinds and both families on two nodes, whose logical ports and policies a controller keeps: connections
between them are what policies are judged by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_interface
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.definitions import multi_policy_definition, multus_definition
from tests.lab.ovn.attempts import PodServers
from tests.lab.ovn.logical_pods import LogicalPod, join_switch
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import give, inside
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.port_service import PodPortKeeper, read_task
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients

POLICIES: Final = ("networkpolicies.networking.k8s.io", "multi-networkpolicies.k8s.cni.cncf.io")
_WATCHED: Final = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)


@dataclass(frozen=True)
class PolicedPod:
    """A pod to be made. `ports`: those of its container that have a name, with protocol and number. `network`: the one that its
    interface is of, "" for the cluster's default network."""

    node: str
    vhost: bool
    namespace: str
    labels: Mapping[str, str]
    ports: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    network: str = ""

    def document(self, name: str) -> dict[str, Any]:
        """As the API has it, once it runs."""
        named = [{"name": each, "protocol": said[0], "containerPort": said[1]} for each, said in self.ports.items()]
        notes = {"k8s.v1.cni.cncf.io/networks": self.network} if self.network else {}
        return {
            "metadata": {"name": name, "namespace": self.namespace, "labels": dict(self.labels), "annotations": notes},
            "spec": {"nodeName": self.node, "containers": [{"name": "only", "ports": named}]},
            "status": {"phase": "Running"},
        }


@dataclass
class PolicedWorld:
    """The chassis, the API server, the controller's part, and the pods by name; `settings` are the controller's, if it has no
    others."""

    ovn: TwoChassis
    api: ApiServer
    directory: Path
    servers: PodServers
    settings: Mapping[str, Any]
    pods: dict[str, LogicalPod] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)
    """The pods' names by the UUIDs of their logical ports."""

    @contextmanager
    def controlled(self, **settings: Any) -> Iterator[PodPortKeeper]:
        """While a controller with these settings keeps ports and policies."""
        session = Clients(KubeconfigBounds.of(Settings()), HERE, self.api.kubeconfig(self.directory)).of("").session
        task = read_task(Settings(ovn_nb=self.ovn.remote("nb"), **{**self.settings, **settings}))
        kept = PodPortKeeper(session, task, lambda: True, ControllerMetrics(lambda: True, {}), watch_times=_WATCHED)
        try:
            kept.start()
            yield kept
        finally:
            kept.stop()

    def put_policies(
        self, policies: Sequence[Mapping[str, Any]], isolated: Mapping[str, set[str]], *, forget: bool = True
    ) -> None:
        """Have these NetworkPolicies, and no others, and wait until they are in force.

        Their names have to be new. `isolated`: the pods by direction that are in some of them. `forget`: as of `settle`.
        """
        names = {each["metadata"]["name"] for each in policies}
        for each in policies:
            self.api.add(each, each["metadata"]["namespace"])
        for store in (self.api.objects(title) for title in POLICIES):
            for namespace, name in tuple(store.things):
                if name not in names:
                    store.remove(namespace, name)
        expected = (names, isolated)
        wait_until(lambda: self.list_policies() == expected, what=f"{expected}, and not {self.list_policies()}")
        self.settle(forget=forget)

    def settle(self, *, forget: bool = True) -> None:
        """Wait until each chassis and switch has followed what the database says. `forget`: as of `revalidate`."""
        self.ovn.nbctl("--wait=hv", "sync")
        self.ovn.revalidate(forget=forget)

    def list_policies(self) -> tuple[set[str], dict[str, set[str]]]:
        """The policies that have a port group, and by direction the pods that are isolated."""
        names: set[str] = set()
        isolated: dict[str, set[str]] = {}
        told = json.loads(self.ovn.nbctl("--format=json", "--columns=external_ids,ports", "list", "Port_Group"))
        for (_, pairs), ports in told["data"]:
            ids = dict(pairs)
            if "policy" in ids:
                names.add(ids["policy"])
            elif "isolated" in ids and (members := {self.ports[uuid] for uuid in _uuids(ports)}):
                isolated.setdefault(ids["isolated"], set()).update(members)
        return names, isolated


@contextmanager
def policed_world(
    pods: Mapping[str, PolicedPod], namespaces: Mapping[str, Mapping[str, str]], **settings: Any
) -> Iterator[PolicedWorld]:
    """With these pods and the namespaces with their labels; its controller is to be started by `controlled`. Each namespace has
    the networks that its pods have."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))
        ovn = stack.enter_context(TwoChassis(directory))
        ovn.nbctl("lr-add", "router")
        for number, name in enumerate(NODES, 1):
            join_switch(ovn, name, number)
            subnets = (f"other_config:subnet=192.168.{number}.0/24", f'other_config:ipv6_prefix="fd00:{number}::"')
            ovn.nbctl("set", "Logical_Switch", name, *subnets)
        api = stack.enter_context(ApiServer())
        for definition in (multus_definition(), multi_policy_definition()):
            api.define(definition)
        for name in NODES:
            api.add(node(name))
        for name, labels in namespaces.items():
            api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}})
        world = PolicedWorld(ovn, api, directory, stack.enter_context(PodServers()), settings)
        for namespace, network in sorted({(pod.namespace, pod.network) for pod in pods.values() if pod.network}):
            api.add(logical_network(network), namespace)
        for name, pod in pods.items():
            api.add_pod(pod.document(name))
        with world.controlled():
            for name, pod in pods.items():
                world.pods[name] = stack.enter_context(attached(world, name, pod))
        rows = json.loads(ovn.nbctl("--format=json", "--columns=_uuid,name", "list", "Logical_Switch_Port"))["data"]
        called = {f"{pod.namespace}_{name}": name for name, pod in pods.items()}
        world.ports = {uuid: called[name] for (_, uuid), name in rows if name in called}
        yield world


@contextmanager
def attached(world: PolicedWorld, name: str, pod: PolicedPod) -> Iterator[LogicalPod]:
    """The pod with its port, by what the controller has said in its annotation."""
    said = json.loads(str(wait_until(lambda: world.api.annotations(pod.namespace, name).get("ovn"), what=f"addresses of {name}")))
    four, six = sorted(_texts(said["ip_address"]), key=lambda each: ip_interface(each).version)
    uid = world.api.pod(pod.namespace, name)["metadata"]["uid"]
    logical = f"{pod.namespace}_{name}"
    with world.ovn.pod(pod.node, logical, uid, four, said["mac_address"], vhost=pod.vhost) as netns:
        give(netns, "eth0", six)
        for gateway in _texts(said["gateway_ip"]):
            inside(netns, "ip", "-6" if ":" in gateway else "-4", "route", "add", "default", "via", gateway)
        yield LogicalPod(logical, netns, pod.node, pod.vhost, four.partition("/")[0], six.partition("/")[0])


def logical_network(name: str) -> dict[str, Any]:
    """A network whose interfaces are logical ports of their nodes' switches."""
    config = {"cniVersion": "1.0.0", "type": "userspace", "name": name, "ovn": {"switch": "node"}, "addresses": "annotations"}
    about = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": name}}
    return {**about, "spec": {"config": json.dumps(config)}}


def _texts(said: str | list[str]) -> list[str]:
    return said if isinstance(said, list) else said.split(",")


def _uuids(said: list[Any]) -> list[str]:
    """The UUIDs of a column of them, as ovn-nbctl prints it: one by itself, or a set."""
    kind, value = said
    return [uuid for _, uuid in value] if kind == "set" else [value]

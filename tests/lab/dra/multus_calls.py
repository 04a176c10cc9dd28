"""What Multus makes of a pod's claims: which device each of its networks gets, and the calls of the plugin.

By the sources of Multus after 4.3.0 (its pull request 1492): Multus itself does not run here. It reads the pod's claims in the
order of `status.resourceClaimStatuses`, which has those that were made of templates, and their allocated devices in the order of
the allocation. Each device has to have both attributes. Their IDs are listed by the name of the resource, and dealt out to the
networks with that name in the order of the pod's annotation. What a network got, it gets again with DEL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.agent.living import LiveNode
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.kube.resource_definitions import CLAIMS, SLICES
from tests.lab.node.node import CONTAINER
from tests.lab.runtimes.runtime import Call

DEVICE_ID: Final = "k8s.cni.cncf.io/deviceID"
RESOURCE_NAME: Final = "k8s.cni.cncf.io/resourceName"


@dataclass(frozen=True)
class Definition:
    """A NetworkAttachmentDefinition. `resource`: its annotation k8s.v1.cni.cncf.io/resourceName."""

    config: Mapping[str, Any]
    resource: str = ""
    namespace: str = "default"

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.config['name']}"


@dataclass(frozen=True)
class Delegate:
    """An interface of a pod's sandbox, as Multus keeps it until DEL."""

    pod: Pod
    netns: str
    ifname: str
    network: Mapping[str, Any]
    container: str = CONTAINER
    alone: bool = False
    """Whether the plugin is called as a process that needs no agent."""

    def call(self, verb: str, node: LiveNode, **keys: Any) -> Call:
        """One call; `keys`: what libcni adds to the network, as `prevResult`."""
        pod = self.pod
        args = [
            ("IgnoreUnknown", "true"),
            ("K8S_POD_NAMESPACE", pod.namespace),
            ("K8S_POD_NAME", pod.name),
            ("K8S_POD_INFRA_CONTAINER_ID", self.container),
            ("K8S_POD_UID", pod.uid),
        ]
        named = ";".join("=".join(each) for each in args)
        run = node.run_handed if self.alone else node.run
        return run(verb, {**self.network, **keys}, self.netns, self.container, self.ifname, CNI_ARGS=named)


def delegates(
    api: ApiServer, node: LiveNode, pod: Pod, netns: str, definitions: Sequence[Definition], container: str = CONTAINER
) -> list[Delegate]:
    """The pod's further interfaces, in the order of its networks."""
    given = {resource: list(devices) for resource, devices in devices_of(api, pod).items()}
    made = []
    for number, each in enumerate(definitions, 1):
        listed, ifname = given.get(each.resource, []), f"net{number}"
        network = dict(each.config)
        if listed:
            device = listed.pop(0)
            file = f"{each.name}-{container}_{ifname}".replace("/", "-")
            offered = {"deviceID": device, "CNIDeviceInfoFile": f"{node.device_info}/cni/{file}"}
            capabilities = network.get("capabilities", {})
            runtime = {key: value for key, value in offered.items() if capabilities.get(key)}
            network |= {"deviceID": device, "pciBusID": device, **({"runtimeConfig": runtime} if runtime else {})}
        made.append(Delegate(pod, netns, ifname, network, container))
    return made


def devices_of(api: ApiServer, pod: Pod) -> dict[str, list[str]]:
    """The IDs of the pod's devices, by resource."""
    found: dict[str, list[str]] = {}
    for status in api.pod(pod.namespace, pod.name)["status"].get("resourceClaimStatuses", ()):
        claim = api.objects(CLAIMS).read(pod.namespace, status["resourceClaimName"])
        for result in claim["status"]["allocation"]["devices"]["results"]:
            attributes = _attributes(api, result)
            found.setdefault(attributes[RESOURCE_NAME]["string"], []).append(attributes[DEVICE_ID]["string"])
    return found


def _attributes(api: ApiServer, result: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Those of the allocated device, in whichever slice of its pool."""
    store = api.objects(SLICES)
    specs = [store.read(*name)["spec"] for name in store.names()]
    pool = [each for each in specs if (each["driver"], each["pool"]["name"]) == (result["driver"], result["pool"])]
    [attributes] = [
        device["attributes"] for each in pool for device in each.get("devices", ()) if device["name"] == result["device"]
    ]
    found: Mapping[str, Mapping[str, str]] = attributes
    return found

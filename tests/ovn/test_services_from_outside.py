"""A Service is reached from outside, by the gateways that commands made and the load balancers that the controller wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.services import endpoint, endpoint_slice, put, service
from tests.lab.ovn.gateway_world import OWN, GatewayWorld, gateway_world
from tests.lab.ovn.kept_services import KeptServices
from tests.lab.ovn.outside import ROUTER4, ROUTER6, run_on
from tests.lab.ovn.shared_gateway import SERVED, asks, serving
from tests.lab.ovn.two_chassis import NODES
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from tests.unit.cli.test_cli_streams import environ

EXTERNAL = ("198.51.100.7", "2001:db8:1::7")
NODE_PORT = 30080


def test_node_ports_and_external_addresses(tmp_path: Path) -> None:
    """At each gateway's addresses, and at external ones that are routed to a gateway, by both families. With
    `externalTrafficPolicy` Local at the endpoint's node alone, and the endpoint sees the client's own address."""
    with gateway_world((("n1", True),)) as world, ApiServer() as api:
        for name in NODES:
            world.make(name)
        for address, router in zip(EXTERNAL, OWN["n1"], strict=True):
            inside(world.outside, "ip", "route", "add", address, "via", router)
        (pod,) = world.pods
        for kind, address in zip(("IPv4", "IPv6"), pod.addresses, strict=True):
            ports = [{"name": "", "port": SERVED, "protocol": "TCP"}]
            put(api, endpoint_slice(f"web-{kind.lower()}", "web", endpoint(address, "n1"), ports=ports, kind=kind))
        kubeconfig = api.kubeconfig(tmp_path)
        kept = KeptServices(kubeconfig, world.ovn.remote("nb"))
        try:
            with serving(pod.netns, SERVED) as clients:
                near = [(address, NODE_PORT) for address in OWN["n1"]] + [(address, 80) for address in EXTERNAL]
                own = (ROUTER4, ROUTER6)
                far = [(address, NODE_PORT) for address in OWN["n2"]]
                put(api, web("Cluster"))
                for address, port in near + far:
                    wait_until(lambda address=address, port=port: asks(world.outside, address, port), what=address)  # type: ignore[misc]
                    assert clients[-1] not in own
                put(api, web("Local"))
                for each in near:
                    wait_until(lambda each=each: asks(world.outside, *each) and clients[-1] in own, what=f"{each} as itself")  # type: ignore[misc]
                wait_until(lambda: not any(asks(world.outside, *each) for each in far), what="no way by the other gateway")
            assert found(world, kubeconfig) == {}
        finally:
            kept.stop()
        world.ovn.nbctl("lb-del", "default/web_tcp")
        for name in ("one", "other"):
            world.ovn.nbctl("lb-add", name, "10.96.0.99:80", "10.244.1.9:80", "--", "ls-lb-add", "n1", name)
        faults = found(world, kubeconfig, code=1)
        assert "1 of 1 Services are not as they are to be, as default/web" in faults["ovn-service-differs"]
        assert "tcp 10.96.0.99:80" in faults["ovn-vip-twice"]


def found(world: GatewayWorld, kubeconfig: str, code: int = 0) -> dict[str, str]:
    """What `ovn check` says of load balancers: the messages by name."""
    environment = {**environ(Path(kubeconfig).parent), "USERSPACE_CNI_KUBECONFIG": kubeconfig}
    findings = json.loads(run_on(world.ovn, "n1", environment, "check", "--json", code=code).stdout)["findings"]
    return {each["name"]: each["message"] for each in findings if each["name"].startswith(("ovn-service", "ovn-vip"))}


def web(policy: str) -> dict[str, Any]:
    ports = [{"port": 80, "protocol": "TCP", "nodePort": NODE_PORT}]
    spec: dict[str, Any] = {"type": "NodePort", "externalIPs": list(EXTERNAL), "externalTrafficPolicy": policy}
    return service("web", "10.96.0.10", "fd10::10", ports=ports, **spec)

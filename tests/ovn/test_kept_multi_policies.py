"""The controller keeps MultiNetworkPolicies, with a real northbound database: of a pod with several ports they isolate those that
their networks have."""

from __future__ import annotations

from typing import Any

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import multi_policy_definition, multus_definition
from tests.lab.ovn.database import NorthboundDatabase
from tests.lab.ovn.policed_pods import logical_network
from tests.lab.switch.switch import wait_until
from tests.ovn.test_kept_logical_ports import Make, api, keep, northbound, noted, ports  # noqa: F401 - fixtures
from tests.ovn.test_kept_policies import WEB, addresses, groups, labelled, policy, put, wait_for

NETWORKS = "k8s.v1.cni.cncf.io/networks"


def with_network(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """A pod with a second interface, of the network `tenants`."""
    made = labelled(name, labels)
    return {**made, "metadata": {**made["metadata"], "annotations": {NETWORKS: "tenants"}}}


def multi_policy(name: str, **spec: Any) -> dict[str, Any]:
    """One for the network `tenants`."""
    made = policy(name, **spec)
    metadata = {**made["metadata"], "annotations": {"k8s.v1.cni.cncf.io/policy-for": "tenants"}}
    return {**made, "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy", "metadata": metadata}


def address_of(database: NorthboundDatabase, port: str) -> str:
    return database.nbctl("lsp-get-addresses", port).split()[1]


def test_a_policy_isolates_the_ports_of_its_networks_alone(
    api: ApiServer,  # noqa: F811
    northbound: NorthboundDatabase,  # noqa: F811
    keep: Make,  # noqa: F811
) -> None:
    """And its peers are pods by their addresses there; NetworkPolicies leave these ports alone."""
    for definition in (multus_definition(), multi_policy_definition()):
        api.define(definition)
    api.add(logical_network("tenants"), "default")
    rule = {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}
    selected = {"matchLabels": WEB}
    put(api, multi_policy("tenants", podSelector=selected, ingress=[rule]))
    put(api, policy("default", podSelector=selected, policyTypes=["Egress"]))
    keep()
    api.add_pod(with_network("web", WEB))
    api.add_pod(with_network("client", {"app": "client"}))
    wait_until(lambda: noted(api, "web") and noted(api, "client"))
    wait_for(
        lambda: groups(northbound),
        {
            "default/tenants": {"default_web_net1"},
            "default ingress": {"default_web_net1"},
            "default/default": {"default_web"},
            "default egress": {"default_web"},
            "None None": set(),
        },
    )
    assert addresses(northbound) == [{address_of(northbound, "default_client_net1")}]


def test_policies_of_a_kind_that_comes_later_are_kept(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """Without the kind's definition nothing waits for it; once it is there, its policies isolate ports that there are already."""
    api.define(multus_definition())
    api.add(logical_network("tenants"), "default")
    keep()
    api.add_pod(with_network("web", WEB))
    wait_until(lambda: "default_web_net1" in ports(northbound), what="the port")
    assert groups(northbound) == {}
    api.define(multi_policy_definition())
    put(api, multi_policy("closed", podSelector={"matchLabels": WEB}, policyTypes=["Ingress"]))
    wait_for(lambda: groups(northbound).get("default ingress"), {"default_web_net1"})


def test_a_start_without_one_of_the_lists_opens_no_port(api: ApiServer, northbound: NorthboundDatabase, keep: Make) -> None:  # noqa: F811
    """A group that isolates has ports by policies of both kinds. While those of one are not known, its ports stay in it."""
    for definition in (multus_definition(), multi_policy_definition()):
        api.define(definition)
    api.add(logical_network("tenants"), "default")
    put(api, multi_policy("tenants", podSelector={"matchLabels": WEB}))
    put(api, policy("default", podSelector={"matchLabels": WEB}))
    first = keep()
    api.add_pod(with_network("web", WEB))
    wait_for(lambda: groups(northbound).get("default ingress"), {"default_web", "default_web_net1"})
    first.ports.stop()
    api.faults.append(Fault("LIST", status=403, about="/multi-networkpolicies"))
    keep()
    api.add_pod(labelled("late", WEB))
    wait_until(lambda: noted(api, "late"))
    api.change("default", "web", {"metadata": {"labels": {"app": "no-web"}}})
    wait_for(lambda: groups(northbound)["default/default"], {"default_late"})
    wait_for(lambda: groups(northbound)["default ingress"], {"default_late", "default_web_net1"})
    assert groups(northbound)["default/tenants"] == {"default_web_net1"}
    api.faults.clear()
    wait_for(lambda: groups(northbound)["default ingress"], {"default_late"})

"""Which logical port of OVN an interface of this node is, and whether its pod may have it.

Names are those that the controller of logical ports derives: node and controller do not speak to each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.steps import LogicalPort
from userspace_cni.base.errors import BadEnvironment, InvalidConfig
from userspace_cni.base.logical_ports import is_called_as_a_further, is_called_as_a_nodes, logical_port_name, may_name
from userspace_cni.base.tenancy import require_bridge_of_ovn, require_logical_switch, require_port, require_without_security

if TYPE_CHECKING:
    from userspace_cni.base.settings import Settings
    from userspace_cni.cni.annotations import PodInterface
    from userspace_cni.cni.options import Options
    from userspace_cni.cni.request import Environment
    from userspace_cni.node.installation import Installation

KUBEOVN: Final = "kube-ovn"


def place_options(options: Options, settings: Settings) -> Options:
    """The options with OVN's integration bridge, if they are a logical port's. Raises InvalidConfig for another bridge."""
    if options.ovn is None:
        return options
    if options.bridge not in ("", settings.ovn_bridge):
        raise InvalidConfig(
            f"key 'host.bridge.bridgeName' is {options.bridge!r} beside 'ovn': OVN sees only the ports of {settings.ovn_bridge}",
            "remove it; the setting ovn_bridge says which bridge is OVN's",
        )
    return replace(options, bridge=settings.ovn_bridge)


def require_allowed(options: Options, environment: Environment, settings: Settings) -> None:
    """Raise BridgeRefused or LogicalPortRefused unless the rules allow the pod such a port on its bridge."""
    rules, namespace = settings.rules, environment.pod_namespace
    if options.ovn is None:
        require_port(rules, namespace, options.bridge, options.vlan)
        if options.bridge == settings.ovn_bridge:
            require_bridge_of_ovn(rules, namespace, options.bridge)
        return
    if options.ovn.switch:
        require_logical_switch(rules, namespace, options.ovn.switch)
        if options.ovn.without_security:
            require_without_security(rules, namespace, options.ovn.switch, options.ovn.without_security)
    if options.ovn.port and not may_name(options.ovn.port, settings.ovn_naming, namespace):
        require_logical_switch(rules, namespace, "")


def logical_port(
    options: Options, environment: Environment, interface: PodInterface, installation: Installation, owner: tuple[str, str]
) -> LogicalPort | None:
    """The logical port that the interface is; None for none. `owner`: name and UID of its pod or VM, as the consumer tells them.

    Raises BadEnvironment where its name cannot be known, and LogicalPortRefused where it could be a node's own, or another pod's.
    """
    if options.ovn is None:
        return None
    owner_name, uid = owner
    settings = installation.settings
    namespace, naming = environment.pod_namespace, settings.ovn_naming
    name = options.ovn.port
    if not name:
        if not (namespace and owner_name):
            raise BadEnvironment(
                "CNI_ARGS holds no K8S_POD_NAMESPACE and K8S_POD_NAME, and a logical port of OVN is called after its pod",
                "without a pod of a cluster the port's name has to be in CNI_ARGS or 'args.cni', as OvnPort",
            )
        name = logical_port_name(naming, namespace, owner_name, _further(interface, naming))
        as_a_further = interface.logical == "first" and is_called_as_a_further(name)
        if naming == KUBEOVN and (as_a_further or is_called_as_a_nodes(name, installation.name)):
            require_logical_switch(settings.rules, namespace, "")
    ids = {"pod_name": owner_name, "pod_namespace": namespace, "pod_netns": environment.netns} if naming == KUBEOVN else {}
    return LogicalPort(name, uid, {key: value for key, value in ids.items() if value}, options.ovn.waits)


def _further(interface: PodInterface, naming: str) -> str:
    if interface.logical == "first":
        return ""
    return interface.usual_provider if naming == KUBEOVN else interface.ifname

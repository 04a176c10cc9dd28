"""A VM's networks and interfaces against what is registered and defined. Pure.

Its memory, vCPUs and annotations: `guest`; its MACs and PCI addresses: `addresses`; its sockets: `sockets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kubevirt.lint.network import Definition, Definitions
from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.registrations import RegisteredObjects

BINDING_METHODS: Final = ("bridge", "masquerade", "sriov", "macvtap", "passt", "passtBinding", "slirp")
MIGRATABLE: Final = ("masquerade", "passt", "passtBinding")


@dataclass(frozen=True)
class LintedInterface:
    """One interface. `binding`: its binding plugin; `network`: its entry in `networks`; `definition`: the network, if given."""

    name: str
    spot: DocumentValue
    binding: str
    network: DocumentValue
    definition: Definition | None
    elsewhere: Definition | None
    """A definition of that name in another namespace, when there is none in the right one."""
    is_vhost_user: bool

    @property
    def is_wanted(self) -> bool:
        """Whether it is a vhost-user interface that is to be there."""
        return self.is_vhost_user and self.spot.text("state") != "absent"

    @property
    def definition_name(self) -> str:
        """[namespace/]name as the VM has it; "" unless the network is of Multus."""
        return self.network.child("multus").text("networkName")


@dataclass(frozen=True)
class LintedMachine:
    """A VM or an instance. `instance`: the instance's spec, `annotations`: the instance's, `own`: those of the VM itself."""

    name: str
    namespace: str
    spot: DocumentValue
    instance: DocumentValue
    annotations: DocumentValue
    own: DocumentValue | None
    nics: tuple[LintedInterface, ...]
    labels: DocumentValue
    """Of the template, and so of the launcher pod."""
    sized_elsewhere: bool
    """Whether an instance type says how many vCPUs and how much memory it has."""

    @cached_property
    def vhost_user(self) -> tuple[LintedInterface, ...]:
        """The interfaces that this is about; those that are to go are left out."""
        return tuple(nic for nic in self.nics if nic.is_wanted)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def read_machine(spot: DocumentValue, kind: str, cluster: RegisteredObjects, definitions: Definitions) -> LintedMachine:
    template = spot.child("spec", "template") if kind == "VirtualMachine" else spot
    instance = template.child("spec")
    namespace = spot.child("metadata").text("namespace")
    networks = {each.text("name"): each for each in instance.items("networks")}
    nics = []
    for each in instance.child("domain", "devices").items("interfaces"):
        name = each.text("name")
        network = networks.get(name, DocumentValue(None, "", spot.report))
        binding = each.child("binding").text("name")
        wanted = network.child("multus").text("networkName")
        definition, elsewhere = definitions.matching(wanted, namespace, spot.report.file) if wanted else (None, None)
        ours = bool(binding) and (cluster.is_vhost_user(binding) or _is_ours(definition, cluster))
        nics.append(LintedInterface(name, each, binding, network, definition, elsewhere, ours))
    return LintedMachine(
        name=spot.child("metadata").text("name"),
        namespace=namespace,
        spot=spot,
        instance=instance,
        annotations=template.child("metadata", "annotations"),
        own=spot.child("metadata", "annotations") if kind == "VirtualMachine" else None,
        nics=tuple(nics),
        labels=template.child("metadata", "labels"),
        sized_elsewhere=spot.child("spec").has("instancetype"),
    )


def judge_networks(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    _judge_completeness(machine)
    for nic in machine.nics:
        _judge_kernel_binding(nic)
        _judge_absent(nic)
        if nic.is_wanted:
            _judge_nic(nic, machine, cluster)
    if not machine.vhost_user:
        return
    _judge_mix(machine)
    _judge_migration(machine, cluster)
    _judge_extent(machine, cluster)


def _is_ours(definition: Definition | None, cluster: RegisteredObjects) -> bool:
    return bool(definition and definition.is_ours and not cluster.named)


def _judge_completeness(machine: LintedMachine) -> None:
    """Whether there is an instance at all: its spec's path is spec, or spec.template.spec."""
    for path in ("spec", "spec.template", "spec.template.spec"):
        names = path.split(".")
        if machine.instance.path.startswith(path) and not machine.spot.child(*names[:-1]).has(names[-1]):
            message = f"there is no {path}, and so no VM"
            machine.spot.find("bad-input", "error", message, "write it, or give the whole object")
            return


def _judge_kernel_binding(nic: LintedInterface) -> None:
    binding = nic.spot.get("binding")
    if binding is not None and not nic.binding:
        if binding == {}:
            message = f"the binding of interface '{nic.name}' has no name"
            nic.spot.find("bad-input", "error", message, "write `binding: {name: vhostuser}`")
        return
    methods = [each for each in BINDING_METHODS if nic.spot.has(each)]
    method = next(iter(methods), "")
    if len(ways := [*(["binding"] if nic.binding else []), *methods]) > 1:
        nic.spot.find(
            "two-bindings",
            "error",
            f"interface '{nic.name}' has {' and '.join(ways)}, of which KubeVirt takes exactly one: it refuses the VM",
            f"leave {'the binding' if nic.is_vhost_user else 'the one that is meant'}, and remove what is beside it",
        )
    if not nic.binding and nic.definition and nic.definition.is_ours:
        nic.spot.find(
            "kernel-binding",
            "error",
            f"interface '{nic.name}' is bound by '{method or 'default'}', and network {nic.definition} has no kernel interface",
            "write `binding: {name: vhostuser}` in place of it, with the name that the KubeVirt object registers",
        )


def _judge_absent(nic: LintedInterface) -> None:
    if nic.is_vhost_user and nic.spot.text("state") == "absent":
        nic.spot.find(
            "absent-interface",
            "error",
            f"interface '{nic.name}' has state 'absent', which KubeVirt takes for bridge interfaces only: it refuses the VM",
            "remove the interface and its network from the VM, which takes effect with its next start",
        )


def _judge_nic(nic: LintedInterface, machine: LintedMachine, cluster: RegisteredObjects) -> None:
    _judge_registered(nic, cluster)
    if (model := nic.spot.text("model")) not in ("", "virtio"):
        nic.spot.find(
            "wrong-model",
            "error",
            f"interface '{nic.name}' has model '{model}', which has no vhost-user backend",
            "remove model, or let it be virtio",
        )
    if nic.network.value is None:
        nic.spot.find("no-source", "error", f"interface '{nic.name}' has no network of its name", "add it to spec.networks")
    elif nic.network.has("pod"):
        nic.spot.find(
            "pod-network",
            "warning",
            f"interface '{nic.name}' binds the pod's own network, which is vhost-user only if the cluster's CNI is this plugin",
            "use a network of Multus, and masquerade for the pod's own",
        )
    elif nic.network.child("multus").flag("default"):
        nic.network.find(
            "pod-network",
            "warning",
            f"network '{nic.definition_name}' is in place of the pod's own (multus.default), and interface '{nic.name}' has no "
            "kernel interface: the pod has none but lo, and a container runtime that wants an address of it starts no pod",
            "leave `default` out of multus, and add a network `pod: {}` with masquerade",
        )
    if nic.elsewhere:
        nic.network.find(
            "other-namespace",
            "error",
            f"network '{nic.definition_name}' is looked for in namespace {machine.namespace or 'of the VM'}; "
            f"the one that was given is {nic.elsewhere}",
            f"write networkName: {nic.elsewhere}, if the cluster's Multus allows other namespaces; or define the network here",
        )
    elif "/" in nic.definition_name and nic.definition_name.partition("/")[0] != (machine.namespace or "default"):
        nic.network.find(
            "other-namespace",
            "note",
            f"network '{nic.definition_name}' is in another namespace than the VM: a Multus with namespaceIsolation refuses it",
            "define the network in the VM's namespace where that is set",
        )


def _judge_registered(nic: LintedInterface, cluster: RegisteredObjects) -> None:
    found = cluster.find_registrations(nic.binding)
    if not found and cluster.registrations:
        names = ", ".join(sorted(each.name for each in cluster.registrations))
        nic.spot.find(
            "unknown-binding",
            "error",
            f"binding '{nic.binding}' is not registered; what is: {names}. KubeVirt takes the VM, and never makes its pod",
            "write the name that is registered, or register this one (`userspace-cni kubevirt manifests` writes the patch)",
        )
    elif not found and cluster.whole:
        nic.spot.find(
            "unknown-binding",
            "error",
            f"binding '{nic.binding}' is not registered, and no other is: KubeVirt takes the VM, and never makes its pod",
            "register it (`userspace-cni kubevirt manifests` writes the patch)",
        )


def _judge_mix(machine: LintedMachine) -> None:
    networks = machine.instance.items("networks")
    multus = [each.text("name") for each in networks if each.has("multus")]
    claims = [each.text("name") for each in networks if each.has("resourceClaim")]
    if multus and claims:
        DocumentValue(None, machine.instance.at("networks"), machine.spot.report).find(
            "mixed-multus-and-dra",
            "error",
            f"networks of Multus ({', '.join(multus)}) and of resource claims ({', '.join(claims)}) in one VM",
            "let all secondary networks of the VM be of one kind",
        )


def _judge_migration(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    for nic in machine.nics:
        if not nic.network.has("pod") or any(nic.spot.has(method) for method in MIGRATABLE):
            continue
        found = cluster.find_registrations(nic.binding)
        if nic.binding and (not found or any(each.spot.has("migration") for each in found)):
            continue
        how = f"binding '{nic.binding}', which has no 'migration'" if nic.binding else "bridge"
        nic.spot.find(
            "not-migratable",
            "warning",
            f"interface '{nic.name}' binds the pod's network by {how}: KubeVirt does not migrate the VM",
            "use masquerade for the pod's network",
        )


def _judge_extent(machine: LintedMachine, cluster: RegisteredObjects) -> None:
    """What could not be judged, in one note."""
    missing = []
    if not cluster.registrations and not cluster.whole:
        missing.append("the KubeVirt or HyperConverged object")
    for nic in machine.vhost_user:
        known = nic.definition is not None and nic.definition.is_ours is not None
        if nic.definition_name and not known and not nic.elsewhere:
            missing.append(f"the configuration of network '{nic.definition_name}'")
    if missing:
        machine.spot.find(
            "not-given",
            "note",
            f"not given, and not looked at: {', '.join(dict.fromkeys(missing))}",
            "give these files too, to have the VM judged together with them",
        )

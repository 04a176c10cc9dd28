"""Manifests with one mistake each: the name and severity of the finding, and a function that makes the mistake."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from kubevirt.lint.vm_claims import CLASS
from kubevirt.plugin_manifests import plugin_manifests
from tests.unit.kubevirt.lint_files import OURS, WANTED, Files, launcher_plugin, plugin, pod, policy, sidecar, told_pod

MINE = "/var/run/kubevirt"
Spoil = Callable[[Files], object]


def _domain(files: Files, **keys: Any) -> None:
    files.domain.update(keys)


def _kubevirt(files: Files, **keys: Any) -> None:
    files.configuration.update(keys)


def _gates(files: Files, gate: str, *others: Any) -> None:
    _kubevirt(files, developerConfiguration={"featureGates": [gate]})
    files.others += others


def _version(files: Files, version: str, *others: Any) -> None:
    files.kubevirt["status"] = {"observedKubeVirtVersion": version}
    files.others += others


def _dra_before_sidecars_have_it(files: Files) -> None:
    _dra(files, gate="NetworkDevicesWithDRA")
    _version(files, "v1.9.1")


def _ignored_failures(files: Files) -> None:
    ignoring = launcher_plugin("GuestDefinition")
    ignoring["spec"]["failureStrategy"] = "Ignore"
    files.others.append(ignoring)


def _own(files: Files, **keys: Any) -> None:
    files.vm["metadata"]["annotations"] = keys


def _dra(files: Files, *, mixed: bool = False, claimed: bool = True, gate: str = "", named: bool = False) -> None:
    spec = files.template["spec"]
    spec["networks"][1] = {"name": "dpdk", "resourceClaim": {"claimName": "c", "requestName": "r"}}
    source = {"resourceClaimName": "mine"} if named else {"resourceClaimTemplateName": "t"}
    spec["resourceClaims"] = [{"name": "c", **source}] if claimed else []
    if mixed:
        files.second_nic()
    if gate:
        _gates(files, gate)


def _dra_given(files: Files, *templates: Any, named: bool = False) -> None:
    """A claim on a KubeVirt that gives it to the sidecar."""
    _dra(files, gate="NetworkDevicesWithDRA", named=named)
    _version(files, "v1.10.0", *templates)


def claim_template(
    parameters: Any = None, request: str = "r", device_class: str = CLASS, alternatives: dict[str, str] | None = None
) -> Any:
    """The template of the VM's claim; `parameters`: what it says to our driver of that request. `alternatives`: the classes of
    those of its own request, by name."""
    asked: dict[str, Any] = {"name": "r", "exactly": {"deviceClassName": device_class}}
    if alternatives:
        asked = {"name": "r", "firstAvailable": [{"name": name, "deviceClassName": each} for name, each in alternatives.items()]}
    devices: dict[str, Any] = {"requests": [asked]}
    if parameters is not None:
        opaque = {"driver": "userspace-cni.io", "parameters": parameters}
        devices["config"] = [{"requests": [request], "opaque": opaque}]
    metadata = {"name": "t", "namespace": WANTED.namespace}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": devices}},
    }


def _upstream_twice(files: Files, *, used: bool) -> None:
    bindings = files.configuration["network"]["binding"]
    bindings["vhostuser"]["sidecarImage"] = "quay.io/x/network-vhostuser-binding:1"
    bindings["vhostuser-b"] = dict(bindings["vhostuser"])
    if used:
        files.second_nic(binding={"name": "vhostuser-b"})


def _our_image_twice(files: Files, version: str = "", image: str = "") -> None:
    bindings = files.configuration["network"]["binding"]
    bindings["second"] = bindings["vhostuser"] | ({"sidecarImage": image} if image else {})
    files.second_nic(binding={"name": "second"})
    if version:
        files.kubevirt["status"] = {"observedKubeVirtVersion": version}


def _passt(files: Files, *, known: bool) -> None:
    if known:
        files.configuration["network"]["binding"]["passt"] = {"sidecarImage": "passt:1", "migration": {}}
    else:
        files.kubevirt = {}
    files.domain["devices"]["interfaces"][0] = {"name": "default", "binding": {"name": "passt"}}


def _host(files: Files, **keys: Any) -> None:
    files.config(host=keys)


def _elsewhere(files: Files, name: str = "dpdk") -> None:
    files.network["metadata"]["namespace"] = "other"
    files.template["spec"]["networks"][1]["multus"]["networkName"] = name


def _user_data(files: Files, text: str) -> None:
    files.template["spec"]["volumes"][1]["cloudInitNoCloud"]["userData"] = text


def _type(files: Files, name: str) -> object:
    files.config(type=name)
    return files


def _path(files: Files, path: str = "/var/run/vhostuser/x.sock") -> object:
    """The annotation with this path of the socket."""
    files.spec(path=path)
    return files


def _resource(files: Files, name: str) -> object:
    return files.network["metadata"].update(annotations={"k8s.v1.cni.cncf.io/resourceName": name})


def _network_twice(files: Files) -> None:
    other = copy.deepcopy(files.network)
    other["spec"]["config"] = json.dumps(json.loads(other["spec"]["config"]) | {"logLevel": "debug"})
    files.others.append(other)


def _rename(files: Files, name: str) -> None:
    files.template["metadata"].pop("annotations", None)
    files.nic["name"] = files.template["spec"]["networks"][1]["name"] = name


def _one_mac(files: Files, bridge: Any) -> None:
    """Give both interfaces of the VM one MAC. The second is on network `other`, with this `host.bridge`, if any."""
    files.nic["macAddress"] = "02:00:00:00:00:01"
    files.second_nic(macAddress="02:00:00:00:00:01")["multus"]["networkName"] = "other"
    if bridge is not None:
        other = copy.deepcopy(files.network)
        other["metadata"]["name"] = "other"
        config = json.loads(other["spec"]["config"])
        other["spec"]["config"] = json.dumps(config | {"host": {"bridge": {"bridgeName": "br0"} | bridge}})
        files.others.append(other)


def _second_vm(files: Files) -> None:
    files.nic["macAddress"] = "02:00:00:00:00:07"
    other = copy.deepcopy(files.vm)
    other["metadata"]["name"] = "other"
    other["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][1]["macAddress"] = "02-00-00-00-00-07"
    files.others.append(other)


def _plugin_without_label(files: Files) -> None:
    objects = [each.object for each in plugin_manifests(WANTED)]
    files.kubevirt = objects[0]
    files.others += objects[1:]


def _multiqueue(files: Files, cores: int) -> None:
    files.spec(mtu=9000)
    files.domain["cpu"]["cores"] = cores
    files.domain["devices"]["networkInterfaceMultiqueue"] = True


def _many_queues(files: Files) -> None:
    files.domain["cpu"]["cores"] = 256
    files.spec(mtu=9000, queues=129)


def _hco(files: Files, **keys: Any) -> None:
    files.hco["spec"].update(keys)
    files.kubevirt = files.hco


def _patched_gate(files: Files) -> None:
    path = "/spec/configuration/developerConfiguration/featureGates/-"
    patches = json.dumps([{"op": "add", "path": path, "value": "Plugins"}])
    files.hco["metadata"]["annotations"] = {"kubevirt.kubevirt.io/jsonpatch": patches}
    files.kubevirt = files.hco


def _hco_too(files: Files) -> None:
    files.hco["spec"]["networkBinding"] = {}
    files.others.append(files.hco)


CASES: dict[str, tuple[str, str, Spoil]] = {
    "memfd off": ("private-memory", "note", lambda f: f.template["metadata"].update(annotations={"kubevirt.io/memfd": "false"})),
    "no huge pages": ("no-hugepages", "note", lambda f: _domain(f, memory={"guest": "1Gi"})),
    "NUMA without huge pages": (
        "no-hugepages", "error", lambda f: _domain(f, memory={"guest": "1Gi"}, cpu={"numa": {"guestMappingPassthrough": {}}}),
    ),
    "odd memory": ("hugepages-short", "error", lambda f: f.domain["memory"].update(guest="1500Mi")),
    "odd requests": (
        "hugepages-short", "error",
        lambda f: _domain(f, memory={"hugepages": {"pageSize": "1Gi"}}, resources={"requests": {"memory": "1500M"}}),
    ),
    "MTU above the port's": ("mtu-mismatch", "error", lambda f: f.spec(mtu=9200)),
    "MTU below the port's": ("mtu-mismatch", "warning", lambda f: f.spec(mtu=1500)),
    "jumbo without one in the network": ("mtu-mismatch", "error", lambda f: _host(f, vhost={"mode": "client"})),
    "more queues than vCPUs": ("queues-over-vcpus", "error", lambda f: f.spec(mtu=9000, queues=5)),
    "multiqueue with one vCPU": (
        "queues-over-vcpus", "note",
        lambda f: _multiqueue(f, 1),
    ),
    "more queues than a port takes": ("queues-over-port", "error", _many_queues),
    "vCPUs by request": (
        "queues-over-vcpus", "error", lambda f: _domain(f, cpu={}, resources={"requests": {"cpu": "500m"}}),
    ),
    "post-copy in a policy": ("post-copy", "warning", lambda f: f.others.append(policy(allow=True))),
    "post-copy in the cluster": ("post-copy", "warning", lambda f: _kubevirt(f, migrations={"allowPostCopy": True})),
    "post-copy in HyperConverged": (
        "post-copy", "warning", lambda f: _hco(f, liveMigrationConfig={"allowPostCopy": True}),
    ),
    "server mode": ("server-mode", "error", lambda f: _host(f, vhost={"mode": "server"}, mtu=9000)),
    "server mode by silence": ("server-mode", "error", lambda f: f.config(consumer=None, host={"mtu": 9000})),
    "QEMU as client": ("server-mode", "error", lambda f: f.spec(mtu=9000, mode="client")),
    "no consumer": ("consumer-missing", "error", lambda f: f.config(consumer=None)),
    "one image for two bindings": ("socket-name-collision", "warning", lambda f: _upstream_twice(f, used=False)),
    "one image for two bindings of a VM": ("socket-name-collision", "error", lambda f: _upstream_twice(f, used=True)),
    "one path for two interfaces": (
        "socket-name-collision", "error",
        lambda f: (
            f.second_nic(),
            f.template["metadata"].update(
                annotations={OURS: json.dumps({name: {"path": "/var/run/kubevirt/a/b"} for name in ("dpdk", "more")})}
            ),
        ),
    ),
    "path in place of the network's own": (
        "no-listener", "error", lambda f: f.spec(mtu=9000, path="/var/run/vhostuser/x.sock"),
    ),
    "a path that is a directory of another": (
        "socket-name-collision", "error",
        lambda f: (
            f.second_nic(),
            f.template["metadata"].update(
                annotations={OURS: json.dumps({"dpdk": {"path": f"{MINE}/a"}, "more": {"path": f"{MINE}/a/b"}})}
            ),
        ),
    ),
    "path in the plugin's directory": (
        "path-not-allowed", "error",
        lambda f: (f.network["spec"].pop("config"), _path(f, "/var/run/kubevirt/vhostuser/net1.sock")),
    ),
    "bridge": ("foreign-network", "error", lambda f: f.config(type="bridge")),
    "bridge with a path": (
        "foreign-network", "error", lambda f: (_type(f, "ovs"), _path(f)),
    ),
    "bridge with a marker": (
        "foreign-network", "error", lambda f: (_type(f, "ovs"), _resource(f, "ovs-cni.network.kubevirt.io/br1")),
    ),
    "type misspelt": ("foreign-network", "error", lambda f: f.config(type="userspace-cni")),
    "no type": ("foreign-network", "error", lambda f: f.config(type=None)),
    "another plugin": ("foreign-network", "error", lambda f: f.config(type="acme")),
    "another plugin with a path": (
        "foreign-network", "note", lambda f: (_type(f, "acme"), _path(f)),
    ),
    "another vhost-user plugin": ("foreign-network", "note", lambda f: f.config(type="vhostuser")),
    "a device plugin's network": ("foreign-network", "note", lambda f: (_type(f, "acme"), _resource(f, "acme.io/vhost"))),
    "another plugin that gets device-info": (
        "foreign-network", "note", lambda f: f.config(type="acme", capabilities={"CNIDeviceInfoFile": True}),
    ),
    "misspelt type that no VM uses": (
        "foreign-network", "warning", lambda f: (_type(f, "Userspace"), f.network["metadata"].update(name="another")),
    ),
    "kind misspelt": ("unknown-kind", "warning", lambda f: f.vm.update(kind="VirtualMachin")),
    "group misspelt": ("unknown-kind", "warning", lambda f: f.network.update(apiVersion="k8s.cni.cnfc.io/v1")),
    "VM twice": ("given-twice", "warning", lambda f: f.others.append(copy.deepcopy(f.vm))),
    "network twice": ("given-twice", "warning", _network_twice),
    "short PCI address": ("bad-input", "error", lambda f: f.nic.update(pciAddress="0a:00.0")),
    "name that libvirt does not take": ("bad-input", "error", lambda f: _rename(f, "wan.1")),
    "state that is none": ("bad-input", "error", lambda f: f.nic.update(state="on")),
    "boot order that is none": ("bad-input", "error", lambda f: f.nic.update(bootOrder=0)),
    "index that is none": ("bad-input", "error", lambda f: f.nic.update(acpiIndex=-1)),
    "interface twice": ("bad-input", "error", lambda f: f.domain["devices"]["interfaces"].append(f.nic)),
    "VM without spec": ("bad-input", "error", lambda f: f.vm.pop("spec")),
    "VM without template": ("bad-input", "error", lambda f: f.vm["spec"].pop("template")),
    "VM without an instance's spec": ("bad-input", "error", lambda f: f.template.pop("spec")),
    "binding by name alone": ("bad-input", "error", lambda f: f.nic.update(binding="vhostuser")),
    "binding without a name": ("bad-input", "error", lambda f: f.nic.update(binding={})),
    "pages in powers of 1000": (
        "hugepages-short", "error", lambda f: f.domain["memory"].update(hugepages={"pageSize": "2M"}, guest="2G"),
    ),
    "pages of a size that no CPU has": (
        "hugepages-short", "error", lambda f: f.domain["memory"].update(hugepages={"pageSize": "4Mi"}),
    ),
    "pages of a size that this CPU has not": (
        "hugepages-short", "error",
        lambda f: (f.domain["memory"].update(hugepages={"pageSize": "32Mi"}), f.template["spec"].update(architecture="amd64")),
    ),
    "pages that are no size": (
        "bad-input", "error", lambda f: f.domain["memory"].update(hugepages={"pageSize": "huge"}),
    ),
    "interface to be absent": ("absent-interface", "error", lambda f: f.nic.update(state="absent")),
    "binding's name in another case": ("field-case", "error", lambda f: f.nic.update(binding={"Name": "vhostuser"})),
    "binding in another case": (
        "field-case", "error", lambda f: (f.nic.pop("binding"), f.nic.update(Binding={"name": "vhostuser"})),
    ),
    "page size in another case": (
        "field-case", "error", lambda f: f.domain["memory"].update(hugepages={"pagesize": "1Gi"}),
    ),
    "network in another case": (
        "field-case", "error", lambda f: f.template["spec"]["networks"][1].update(multus={"networkname": "dpdk"}),
    ),
    "two bindings of one image, version unknown": ("other-binding", "warning", _our_image_twice),
    "two bindings of one image before 1.9": ("other-binding", "error", lambda f: _our_image_twice(f, "v1.8.2")),
    "two bindings of two images before 1.9": (
        "other-binding", "warning", lambda f: _our_image_twice(f, "v1.5.0", image="userspace-cni-second:1"),
    ),
    "vhost-user in place of the pod network": (
        "pod-network", "warning", lambda f: f.template["spec"]["networks"][1]["multus"].update(default=True),
    ),
    "policy for other VMs": (
        "post-copy", "note", lambda f: f.others.append(policy(allow=True, virtualMachineInstanceSelector={"app": "db"})),
    ),
    "one MAC on two bridges": (
        "mac-conflict", "note", lambda f: _one_mac(f, {"bridgeName": "br9", "vlanId": 5}),
    ),
    "one MAC on two VLANs": ("mac-conflict", "note", lambda f: _one_mac(f, {"vlanId": 6})),
    "one MAC on a VLAN and a trunk": ("mac-conflict", "warning", lambda f: _one_mac(f, {"vlanId": 0})),
    "one MAC on two names of one VLAN": ("mac-conflict", "error", lambda f: _one_mac(f, {"vlanId": 5})),
    "one MAC on a network that is not given": ("mac-conflict", "warning", lambda f: _one_mac(f, None)),
    "one MAC as the pod's own interface": (
        "mac-conflict", "note",
        lambda f: [each.update(macAddress="02:00:00:00:00:01") for each in f.domain["devices"]["interfaces"]],
    ),
    "long path": ("path-too-long", "error", lambda f: f.spec(mtu=9000, path=f"/var/run/kubevirt/{'a' * 100}")),
    "path elsewhere": ("path-not-allowed", "error", lambda f: f.spec(mtu=9000, path="/etc/passwd")),
    "Multus and DRA": ("mixed-multus-and-dra", "error", lambda f: _dra(f, mixed=True)),
    "DRA": ("dra-not-mounted", "note", _dra),
    "DRA on a KubeVirt that does not give the claim": (
        "dra-not-mounted", "warning", _dra_before_sidecars_have_it,
    ),
    "binding and a core method": ("two-bindings", "error", lambda f: f.nic.update(bridge={})),
    "another's binding and a core method": (
        "two-bindings", "error",
        lambda f: f.domain["devices"]["interfaces"].append({"name": "t", "binding": {"name": "acme"}, "masquerade": {}}),
    ),
    "two core methods": ("two-bindings", "error", lambda f: f.domain["devices"]["interfaces"][0].update(bridge={})),
    "DRA with a claim that the VM names": ("not-migratable", "note", lambda f: _dra_given(f, named=True)),
    "DRA with a template for pods": (
        "not-migratable", "warning", lambda f: _dra_given(f, claim_template({"host": {"mtu": 1500}})),
    ),
    "DRA with a template without parameters": ("not-migratable", "warning", lambda f: _dra_given(f, claim_template())),
    "DRA with parameters for another request": (
        "not-migratable", "warning", lambda f: _dra_given(f, claim_template({"consumer": "kubevirt"}, "other")),
    ),
    "DRA with parameters for one of two alternatives": (
        "not-migratable",
        "warning",
        lambda f: _dra_given(f, claim_template({"consumer": "kubevirt"}, "r/fast", alternatives={"fast": CLASS, "slow": CLASS})),
    ),
    "DRA without its gate": ("dra-not-mounted", "error", lambda f: _dra(f, gate="Other")),
    "DRA without its claim": ("no-source", "error", lambda f: _dra(f, claimed=False)),
    "another hook": (
        "lossy-sidecar", "warning", lambda f: f.template["metadata"].update(annotations={"hooks.kubevirt.io/hookSidecars": "[]"}),
    ),
    "another binding": ("lossy-sidecar", "warning", lambda f: _passt(f, known=True)),
    "another binding, unknown": ("lossy-sidecar", "note", lambda f: _passt(f, known=False)),
    "gate, Plugin and sidecar": ("plugins-gate", "error", lambda f: _gates(f, "Plugins", plugin())),
    "gate, Plugin without a hook, and sidecar": (
        "plugins-gate", "error", lambda f: _gates(f, "Plugins", plugin() | {"spec": {"condition": "false"}}),
    ),
    "gate without a Plugin": ("plugins-gate", "warning", lambda f: _gates(f, "Plugins")),
    "Plugin without the gate": ("plugins-gate", "warning", lambda f: _gates(f, "Other", plugin())),
    "gate by HyperConverged's patch": (
        "plugins-gate", "warning",
        _patched_gate,
    ),
    "model": ("wrong-model", "error", lambda f: f.nic.update(model="e1000e")),
    "not registered": ("unknown-binding", "error", lambda f: f.nic.update(binding={"name": "vhost-user"})),
    "nothing registered": (
        "unknown-binding", "error", lambda f: f.kubevirt.update(spec={"configuration": {}}, status={"phase": "Deployed"}),
    ),
    "binding as a fork has it": (
        "unknown-binding", "error", lambda f: (f.nic.pop("binding"), f.nic.update(vhostuser={})),
    ),
    "the same without a value": (
        "unknown-binding", "error", lambda f: (f.nic.pop("binding"), f.nic.update(vhostUser=None)),
    ),
    "the same beside the binding": ("unknown-binding", "error", lambda f: f.nic.update(vdpa={"socket": "x"})),
    "core binding in another case": (
        "field-case", "error", lambda f: f.domain["devices"]["interfaces"].append({"name": "third", "SRIOV": {}}),
    ),
    "tap beside": ("domain-attachment", "error", lambda f: f.binding.update(domainAttachmentType="tap")),
    "no migration": ("not-migratable", "warning", lambda f: f.binding.pop("migration")),
    "link-refresh": ("not-migratable", "error", lambda f: f.binding.update(migration={"method": "link-refresh"})),
    "bridge on the pod network": (
        "not-migratable", "warning",
        lambda f: f.domain["devices"]["interfaces"].__setitem__(0, {"name": "default", "bridge": {}}),
    ),
    "vhost-user on the pod network": (
        "pod-network", "warning", lambda f: f.template["spec"]["networks"].__setitem__(1, {"name": "dpdk", "pod": {}}),
    ),
    "little memory": (
        "sidecar-memory", "warning",
        lambda f: _kubevirt(f, supportContainerResources=[{"type": "sidecar", "resources": {"limits": {"memory": "60M"}}}]),
    ),
    "too little memory": (
        "sidecar-memory", "error",
        lambda f: _kubevirt(f, supportContainerResources=[{"type": "sidecar", "resources": {"limits": {"memory": "32Mi"}}}]),
    ),
    "no device-info": ("no-device-info", "note", lambda f: f.binding.pop("downwardAPI")),
    "resource without the capability": (
        "no-device-info", "note", lambda f: f.network["metadata"].update(annotations={"k8s.v1.cni.cncf.io/resourceName": "x/y"}),
    ),
    "no sidecar": ("no-source", "error", lambda f: f.binding.pop("sidecarImage")),
    "no label": ("no-source", "error", _plugin_without_label),
    "no network": ("no-source", "error", lambda f: f.template["spec"]["networks"].pop()),
    "DPDK with vfio in the guest": ("iommu", "note", lambda f: _user_data(f, "#cloud-config\nruncmd: [modprobe vfio-pci]")),
    "ring size": ("ring-size", "error", lambda f: f.spec(mtu=9000, rxQueueSize=300)),
    "group MAC": ("mac-mismatch", "error", lambda f: f.nic.update(macAddress="03:00:00:00:00:01")),
    "no MAC": ("mac-mismatch", "error", lambda f: f.nic.update(macAddress="02:00")),
    "one PCI address for two interfaces": (
        "pci-address", "error", lambda f: (f.nic.update(pciAddress="0000:0A:00.0"), f.second_nic(pciAddress="0000:0a:00.0")),
    ),
    "one MAC for two interfaces": (
        "mac-conflict", "error",
        lambda f: (f.nic.update(macAddress="02:00:00:00:00:01"), f.second_nic(macAddress="02:00:00:00:00:01")),
    ),
    "one MAC for two VMs": ("mac-conflict", "error", _second_vm),
    "one MAC for a network": ("mac-conflict", "warning", lambda f: _host(f, mtu=9000, mac="02:00:00:00:00:01")),
    "network of another namespace": ("other-namespace", "error", _elsewhere),
    "network named in another namespace": (
        "other-namespace", "note", lambda f: _elsewhere(f, "other/dpdk"),
    ),
    "kernel interface of a vhost-user network": (
        "kernel-binding", "error", lambda f: (f.nic.pop("binding"), f.nic.update(bridge={})),
    ),
    "registered where it is overwritten": ("hco-overwrites", "warning", _hco_too),
    "owned by HyperConverged": (
        "hco-overwrites", "warning", lambda f: f.kubevirt["metadata"].update(ownerReferences=[{"kind": "HyperConverged"}]),
    ),
    "network of the binding": ("binding-nad", "warning", lambda f: f.binding.update(networkAttachmentDefinition="x")),
    "socket of a Plugin": (
        "plugin-socket", "error",
        lambda f: f.others.append(plugin(sidecar={"socketPath": "/var/run/kubevirt-plugin/x/a"})),
    ),
    "a Plugin of 1.9 on 1.10": (
        "plugin-version", "error", lambda f: _version(f, "v1.10.0", plugin("userspace-cni-vhostuser")),
    ),
    "a Plugin of 1.10 on 1.9": (
        "plugin-version", "error", lambda f: _version(f, "v1.9.2", launcher_plugin("GuestDefinition")),
    ),
    "a Plugin before there were any": (
        "plugin-version", "error", lambda f: _version(f, "v1.8.2", plugin()),
    ),
    "a Plugin of two versions": (
        "plugin-version", "warning",
        lambda f: f.others.append({**plugin(), "spec": {**plugin()["spec"], **launcher_plugin("PreBoot", name="mine")["spec"]}}),
    ),
    "a Plugin without its hook": (
        "plugin-pruned", "error",
        lambda f: f.others.append(plugin("userspace-cni-vhostuser") | {"spec": {"failureStrategy": "Fail"}}),
    ),
    "a Plugin of another name without its hook": (
        "plugin-pruned", "error",
        lambda f: f.others.append(plugin() | {"spec": {"mutatingAdmissionPolicies": [{"name": "userspace-cni-vhostuser"}]}}),
    ),
    "a Plugin that permits nothing": (
        "plugin-hooks", "error", lambda f: f.others.append(launcher_plugin()),
    ),
    "a Plugin that permits a hook that is none": (
        "plugin-hooks", "error", lambda f: f.others.append(launcher_plugin("GuestDefinition", "PreStart")),
    ),
    "a Plugin that asks our sidecar for more": (
        "plugin-hooks", "error", lambda f: f.others.append(launcher_plugin("GuestDefinition", "PreBoot")),
    ),
    "a Plugin that asks our sidecar for something else": (
        "plugin-hooks", "error", lambda f: f.others.append(launcher_plugin("PreBoot")),
    ),
    "socket of a newer Plugin": (
        "plugin-socket", "error", lambda f: f.others.append(launcher_plugin("GuestDefinition", socketPath="/var/run/a.sock")),
    ),
    "failures of a newer Plugin": ("failure-ignored", "warning", _ignored_failures),
    "failures of a Plugin": ("failure-ignored", "warning", lambda f: f.others.append(plugin(failureStrategy="Ignore"))),
    "annotation of the VM": ("annotation-place", "warning", lambda f: _own(f, **{"kubevirt.io/memfd": "false"})),
    "annotation that is no JSON": ("bad-input", "error", lambda f: f.template["metadata"].update(annotations={OURS: "{"})),
    "network that is no JSON": ("bad-input", "error", lambda f: f.network["spec"].update(config="{")),
    "list that is none": ("bad-input", "error", lambda f: f.template["spec"].update(networks={"a": 1})),
    "list of what are no objects": ("bad-input", "error", lambda f: f.template["spec"]["networks"].append("a")),
    "cores that are no number": ("bad-input", "error", lambda f: f.domain["cpu"].update(cores="4")),
    "pod with a client": ("server-mode", "error", lambda f: f.others.append(told_pod(mode="client"))),
    "pod with a long path": ("path-too-long", "error", lambda f: f.others.append(told_pod(path=f"/var/run/{'a' * 100}"))),
    "pod with two MACs": ("mac-mismatch", "error", lambda f: f.others.append(told_pod(mac="02:00:00:00:00:02"))),
    "pod without the volume": ("no-vhost-directory", "error", lambda f: f.others.append(pod(volumes=[]))),
    "pod without huge pages": (
        "no-hugepages", "note", lambda f: f.others.append(pod(containers=[sidecar()])),
    ),
    "pod with another sidecar": (
        "lossy-sidecar", "warning",
        lambda f: f.others.append(pod(containers=[sidecar(), sidecar(name="hook-sidecar-1", image="x")])),
    ),
    "pod with a small sidecar": (
        "sidecar-memory", "error",
        lambda f: f.others.append(pod(containers=[sidecar(resources={"limits": {"memory": "8M"}})])),
    ),
    "pod with one image twice": (
        "socket-name-collision", "error",
        lambda f: f.others.append(pod(containers=[sidecar(name=f"hook-sidecar-{each}", image="vhostuser:1") for each in (0, 1)])),
    ),
    "pod whose sidecar has no claim": (
        "dra-not-mounted", "warning", lambda f: f.others.append(pod(resourceClaims=[{"name": "c"}])),
    ),
}  # fmt: skip

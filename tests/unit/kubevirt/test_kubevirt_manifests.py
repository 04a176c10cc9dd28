"""The manifests that are printed fit the CRDs' schemas, the plugin's parser and the sidecar."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner, Result

from kubevirt.domain import mutate
from kubevirt.manifests import LABEL
from kubevirt.socket_search import SidecarPlaces, resolve
from kubevirt.vmi import read_vmi
from tests.lab.kube.admission import AdmissionPolicy, AdmissionRequest
from tests.unit.kubevirt.plugin_definition import refused, stored
from tests.unit.kubevirt.schemas import DATA, faults, schema
from userspace_cni.cli.kubevirt.kubevirt_group import kubevirt_command
from userspace_cni.cni.options import Options, read_options
from userspace_cni.cni.request import Environment, Request, read_network
from userspace_cni.consumers import CONSUMERS
from userspace_cni.pod import launcher

EVERYTHING = (
    "--namespace",
    "tenant",
    "--name",
    "fast",
    "--binding",
    "vhu",
    "--bridge",
    "br-dpdk",
    "--vlan",
    "100",
    "--mtu",
    "9000",
)
VARIANTS: tuple[tuple[str, ...], ...] = (
    (),
    EVERYTHING,
    (
        *EVERYTHING,
        "--queues",
        "4",
        "--cpus",
        "4",
        "--dedicated",
        "--hugepages",
        "1Gi",
        "--memory",
        "2Gi",
        "--cni-version",
        "1.1.0",
    ),
)
NEWER: tuple[str, ...] = ("--kubevirt", "1.10")
SELECTIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("hco", "nad", "vm"),
    ("plugin", "nad", "vm"),
    ("plugin", "nad", "vm", *NEWER),
)
NOT_IN_THE_SCHEMA = ("disks", "rng")
"""Devices that the schema's excerpt leaves out."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kubevirt_command, ["manifests", *arguments])


def printed(*arguments: str) -> list[Any]:
    """The objects that are printed as YAML."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


def of_kind(objects: Sequence[Any], kind: str) -> Any:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def launched(vm: Any) -> dict[str, Any]:
    """The VMI that KubeVirt makes from a VM's template."""
    template = vm["spec"]["template"]
    metadata = {**template["metadata"], "name": vm["metadata"]["name"], "namespace": vm["metadata"]["namespace"], "uid": "u"}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata, "spec": template["spec"]}


def options_of(nad: Any) -> Options:
    """The plugin's options from a network's configuration, of which nothing may be ignored."""
    network = read_network(nad["spec"]["config"].encode(), "ADD")
    environment = Environment("ADD", "c", "/run/netns/n", "pod1", {}, (), netns_override=False, variables={})
    warnings: list[str] = []
    options = read_options(Request(environment, network, b""), CONSUMERS, warnings.append)
    assert warnings == []
    return options


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("what", SELECTIONS)
class TestEveryVariant:
    """Properties of the manifests with any options."""

    def test_the_objects_fit_the_schemas(self, what: tuple[str, ...], options: tuple[str, ...]) -> None:
        """No object has a key that KubeVirt does not know, lacks a required key, or has a value of another type."""
        objects = printed(*what, *options)
        bindings = [each["spec"]["configuration"]["network"]["binding"] for each in objects if each["kind"] == "KubeVirt"]
        bindings += [each["spec"]["networkBinding"] for each in objects if each["kind"] == "HyperConverged"]
        (binding,) = bindings
        configuration = {"spec": {"configuration": {"network": {"binding": binding}}}}
        assert list(faults(configuration, schema("crd-kubevirt-network-schema.yaml"))) == []
        spec = dict(of_kind(objects, "VirtualMachine")["spec"]["template"]["spec"])
        del spec["volumes"]
        devices = {key: value for key, value in spec["domain"]["devices"].items() if key not in NOT_IN_THE_SCHEMA}
        spec["domain"] = {**spec["domain"], "devices": devices}
        assert list(faults({"spec": spec}, schema("crd-vmi-interfaces-schema.yaml"))) == []
        for plugin in (each for each in objects if each["kind"] == "Plugin"):
            assert refused(plugin, "1.10" if set(NEWER) <= set(what) else "1.9") == []

    def test_yaml_and_json_say_the_same(self, what: tuple[str, ...], options: tuple[str, ...]) -> None:
        """Reading the YAML back gives the objects of --json; no YAML reader takes a text for something else."""
        objects = printed(*what, *options)
        assert json.loads(run(*what, *options, "--json").output) == objects
        assert list(yaml.safe_load_all(yaml.safe_dump_all(objects))) == objects

    def test_every_document_begins_with_what_it_is_for(self, what: tuple[str, ...], options: tuple[str, ...]) -> None:
        """A comment above each document says how it is applied or what it does. Each document is one --- part."""
        parts = run(*what, *options).output.split("---\n")
        assert len(parts) == len(printed(*what, *options))
        assert all(part.startswith("# ") for part in parts)

    def test_the_names_agree(self, what: tuple[str, ...], options: tuple[str, ...]) -> None:
        """The VM names the printed network, in the same namespace, and the registered binding."""
        objects = printed(*what, *options)
        nad, vm = of_kind(objects, "NetworkAttachmentDefinition"), of_kind(objects, "VirtualMachine")
        vmi = read_vmi(launched(vm))
        (ours,) = [each for each in vmi.interfaces if each.binding]
        assert vmi.networks[ours.network].multus == nad["metadata"]["name"] == json.loads(nad["spec"]["config"])["name"]
        assert vm["metadata"]["namespace"] == nad["metadata"]["namespace"]
        assert f"{ours.binding}:" in run(*what, *options).output

    def test_the_network_is_what_the_plugin_takes(self, what: tuple[str, ...], options: tuple[str, ...]) -> None:
        """The plugin's parser accepts the configuration without a warning: for a VM, with OVS as client."""
        found = options_of(of_kind(printed(*what, *options), "NetworkAttachmentDefinition"))
        assert found.consumer == "kubevirt"
        assert found.ovs_role == "client"
        assert (found.bridge, found.vlan.tag, found.mtu) == (("br-dpdk", 100, 9000) if options else ("br0", None, None))

    def test_the_sidecar_makes_the_interface_of_the_vm(self, what: tuple[str, ...], options: tuple[str, ...]) -> None:
        """The VM's definition as KubeVirt renders it gets the interface at the path where the plugin made the directory."""
        vmi = read_vmi(launched(of_kind(printed(*what, *options), "VirtualMachine")))
        network = "fast" if options else "dpdk"
        (ours,) = [each for each in vmi.interfaces if each.binding]
        sources = resolve(vmi, ours.binding, SidecarPlaces("/nowhere/network-info", "/nowhere"), 0.0, lambda _: None)
        assert list(sources) == [network]
        after = mutate(rendered(), vmi, sources)
        (made,) = ET.fromstring(after).findall("./devices/interface[@type='vhostuser']")
        found = {child.tag: dict(child.attrib) for child in made}
        assert found["source"] == {
            "type": "unix",
            "path": launcher.socket_path(launcher.interface_name(network)),
            "mode": "server",
        }
        assert found["alias"] == {"name": f"ua-{network}"}
        assert found["driver"].get("queues") == ("4" if "--queues" in options else None)
        assert ET.fromstring(after).find("./memoryBacking/access[@mode='shared']") is not None


def rendered() -> str:
    """A domain of KubeVirt's own tests, with what KubeVirt adds for hugepages: memfd, one NUMA cell, no shared access."""
    extract = (DATA / "domain-hugepages-memfd.xml").read_text()
    inner = extract[extract.index("<domain>") + len("<domain>") : extract.index("</domain>")]
    whole = (DATA / "domain-hooks.xml").read_text()
    without_cpu = re.sub(r"  <cpu .*</vcpu>\n", "", whole, flags=re.DOTALL)
    return without_cpu.replace("</memory>", f"</memory>{inner}", 1)


def test_without_a_word_the_three_usual_ones_are_printed() -> None:
    """Without arguments registration, network and VM are printed, in the order in which they are applied."""
    assert [each["kind"] for each in printed()] == ["KubeVirt", "NetworkAttachmentDefinition", "VirtualMachine"]
    assert [each["kind"] for each in printed("vm", "nad")] == ["NetworkAttachmentDefinition", "VirtualMachine"]


def test_the_registration_takes_nothing_from_anybody() -> None:
    """The merge patch sets our own key of a map. It replaces no list, no CNI, and no interface of KubeVirt's own."""
    (cr,) = printed("kubevirt", "--image", "registry.example/sidecar@sha256:0123")
    assert cr["spec"] == {
        "configuration": {
            "network": {
                "binding": {
                    "vhostuser": {
                        "sidecarImage": "registry.example/sidecar@sha256:0123",
                        "downwardAPI": "device-info",
                        "migration": {},
                    }
                }
            }
        }
    }
    text = run("kubevirt").output
    assert "kubectl patch kubevirt kubevirt --namespace kubevirt --type merge --patch-file" in text
    assert "supportContainerResources" in text


def test_hyperconverged_is_patched_where_its_operator_reads() -> None:
    """The HyperConverged CR gets the same binding, in the given namespace."""
    (cr,) = printed("hco", "--operator-namespace", "openshift-cnv")
    assert (cr["apiVersion"], cr["kind"]) == ("hco.kubevirt.io/v1beta1", "HyperConverged")
    assert cr["metadata"] == {"name": "kubevirt-hyperconverged", "namespace": "openshift-cnv"}
    assert cr["spec"]["networkBinding"] == printed("kubevirt")[0]["spec"]["configuration"]["network"]["binding"]


def test_tuning_is_in_the_annotation() -> None:
    """The annotation has what KubeVirt's API has no field for. Without such options there is no annotation."""
    plain = launched(printed("vm")[0])["metadata"]
    assert plain.keys() == {"labels", "name", "namespace", "uid"}
    assert plain["labels"] == {"kubevirt.io/domain": "dpdk-vm"}
    (vm,) = printed("vm", "--mtu", "9000", "--queues", "2")
    vmi = read_vmi(launched(vm))
    (source,) = resolve(vmi, "vhostuser", SidecarPlaces("/nowhere/network-info", "/nowhere"), 0.0, lambda _: None).values()
    assert (source.mtu, source.queues) == (9000, 2)


class TestPlugin:
    """The sidecar as a structured plugin."""

    def test_its_parts_name_each_other(self) -> None:
        """Socket, policy and binding fit together by path, name and label. There is no sidecar of KubeVirt's own."""
        objects = printed("plugin", "vm", "--binding", "vhu")
        plugin, policy = of_kind(objects, "Plugin"), of_kind(objects, "MutatingAdmissionPolicy")
        name = plugin["metadata"]["name"]
        assert LABEL.fullmatch(name)
        assert plugin["spec"]["mutatingAdmissionPolicies"] == [{"name": policy["metadata"]["name"]}]
        assert of_kind(objects, "MutatingAdmissionPolicyBinding")["spec"] == {"policyName": policy["metadata"]["name"]}
        (hook,) = plugin["spec"]["domainHooks"]
        assert hook["sidecar"]["socketPath"].startswith(f"/var/run/kubevirt-plugin/{name}/")
        expression = policy["spec"]["mutations"][0]["jsonPatch"]["expression"]
        assert f'value: "{hook["sidecar"]["socketPath"]}"' in expression
        assert f'mountPath: "/var/run/kubevirt-plugin/{name}", subPath: "{name}"' in expression
        label = of_kind(objects, "VirtualMachine")["spec"]["template"]["metadata"]["labels"]["userspace-cni/binding"]
        assert f'["userspace-cni/binding"] == "{label}"' in policy["spec"]["matchConditions"][1]["expression"]
        assert of_kind(objects, "KubeVirt")["spec"]["configuration"]["network"]["binding"] == {
            "vhu": {"downwardAPI": "device-info", "migration": {}}
        }

    @pytest.mark.parametrize("version", ["1.9", "v1.9.3", "1.10", "v1.10.0-alpha.1", "1.11", "2.0"])
    def test_its_hook_is_in_the_form_of_the_version(self, version: str) -> None:
        """Each version's definition accepts its own form as a whole. The other form is refused, or loses its hook."""
        plugin = of_kind(printed("plugin", "--kubevirt", version), "Plugin")
        own, other = ("1.9", "1.10") if version.startswith(("1.9", "v1.9")) else ("1.10", "1.9")
        assert refused(plugin, own) == []
        assert stored(plugin, own) == plugin
        [fault] = refused(plugin, other)
        assert fault.endswith("Hooks: is unknown")
        assert set(plugin["spec"]) - set(stored(plugin, other)["spec"]) == {"domainHooks" if own == "1.9" else "launcherHooks"}

    def test_the_newer_form_asks_for_the_definition_alone(self) -> None:
        """KubeVirt calls the hooks that the Plugin permits, and our sidecar has only this one."""
        former, newer = (of_kind(printed("plugin", *more), "Plugin")["spec"] for more in ((), NEWER))
        [hook] = newer.pop("launcherHooks")
        assert hook["sidecar"].pop("permittedHooks") == ["GuestDefinition"]
        assert former.pop("domainHooks") == [hook]
        assert former == newer

    def test_its_condition_has_the_names_of_go(self) -> None:
        """KubeVirt compiles a Plugin's condition against its Go struct, whose fields all begin with a capital."""
        condition = of_kind(printed("plugin", "--binding", "vhu"), "Plugin")["spec"]["condition"]
        assert condition == 'vmi.Spec.Domain.Devices.Interfaces.exists(i, has(i.Binding) && i.Binding.Name == "vhu")'

    def test_its_policy_has_the_names_of_json(self) -> None:
        """The API server gives a policy the objects as JSON: no field in its expressions begins with a capital."""
        for options in VARIANTS:
            spec = of_kind(printed("plugin", *options), "MutatingAdmissionPolicy")["spec"]
            texts = [each["expression"] for each in spec["matchConditions"]]
            for text in (*texts, spec["mutations"][0]["jsonPatch"]["expression"]):
                bare = re.sub(r'"[^"\n]*"', '""', text)
                fields = re.findall(r"[\w)\]]\.(\w+)", bare) + re.findall(r"(\w+):", bare)
                assert "object" in bare
                assert fields
                assert [field for field in fields if not field[0].islower()] == []

    def test_which_pods_the_policy_is_about(self) -> None:
        """The policy is about pods with both labels and KubeVirt's volume for the socket. No expression fails without volumes."""
        policy = AdmissionPolicy(of_kind(printed("plugin", "--binding", "vhu"), "MutatingAdmissionPolicy")["spec"])
        labels = {"kubevirt.io": "virt-launcher", "userspace-cni/binding": "vhu"}
        sockets, other = {"name": "kubevirt-plugin-sockets"}, {"name": "network-info-annotation"}
        for metadata, spec, wanted in (
            ({"labels": labels}, {"volumes": [other, sockets]}, True),
            ({"labels": labels}, {"volumes": [other]}, False),
            ({"labels": labels}, {}, False),
            ({"labels": {**labels, "userspace-cni/binding": "other"}}, {"volumes": [sockets]}, False),
            ({}, {"volumes": [sockets]}, False),
        ):
            asked = AdmissionRequest("pods", "CREATE", {"metadata": metadata, "spec": spec}, None)
            assert policy.is_about(asked) == wanted

    def test_its_expressions_are_closed(self) -> None:
        """Brackets and quotes of the CEL texts are balanced, whatever the names are."""
        for options in VARIANTS:
            objects = printed("plugin", *options)
            spec = of_kind(objects, "MutatingAdmissionPolicy")["spec"]
            texts = [each["expression"] for each in spec["matchConditions"]]
            texts += [spec["mutations"][0]["jsonPatch"]["expression"], of_kind(objects, "Plugin")["spec"]["condition"]]
            for text in texts:
                bare = re.sub(r'"[^"\n]*"', "", text)
                assert '"' not in bare
                while (shorter := re.sub(r"\([^][(){}]*\)|\[[^][(){}]*\]|\{[^][(){}]*\}", "", bare)) != bare:
                    bare = shorter
                assert not re.search(r"[][(){}]", bare)

    def test_the_container_has_no_privilege(self) -> None:
        """The container runs as KubeVirt's own sidecars do: user 107, no capability, no privilege escalation."""
        expression = of_kind(printed("plugin"), "MutatingAdmissionPolicy")["spec"]["mutations"][0]["jsonPatch"]["expression"]
        for part in (
            "allowPrivilegeEscalation: false",
            "runAsNonRoot: true",
            "runAsUser: 107",
            'drop: ["ALL"]',
            '"RuntimeDefault"',
        ):
            assert part in expression


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("pods",), "'pods'"),
        (("--name", "Fast"), "--name"),
        (("--name", "a" * 64), "--name"),
        (("--name", "a.b"), "--name"),
        (("--name", "default"), "--name"),
        (("--namespace", "-a"), "--namespace"),
        (("--binding", 'x" || true'), "--binding"),
        (("--vm", ""), "--vm"),
        (("--image", 'a", x: "'), "--image"),
        (("--bridge", "a b"), "--bridge"),
        (("--bridge", "b" * 16), "--bridge"),
        (("--vlan", "0"), "--vlan"),
        (("--vlan", "4095"), "--vlan"),
        (("--mtu", "67"), "--mtu"),
        (("--hugepages", "4Mi"), "--hugepages"),
        (("--memory", "lots"), "--memory lots"),
        (("--memory", "0"), "--memory 0"),
        (("--memory", "1Gi1"), "--memory"),
        (("--memory", "1537Mi"), "--memory 1537Mi"),
        (("--hugepages", "1Gi", "--memory", "1536Mi"), "pages of 1Gi"),
        (("--cpus", "0"), "--cpus"),
        (("--queues", "3"), "--queues 3"),
        (("kubevirt", "hco"), "hco and kubevirt each register"),
        (("kubevirt", "plugin"), "kubevirt and plugin each register"),
        (("--cni-version", "0.3.1"), "--cni-version"),
        (("plugin", "--kubevirt", "new"), "'new' is not a version of KubeVirt"),
        (("plugin", "--kubevirt", "1"), "'1' is not a version of KubeVirt"),
        (("plugin", "--kubevirt", "1.8.2"), "structured plugins came with 1.9"),
        (("plugin", "--binding", "b" * 50), "--binding: it has 50 characters"),
    ],
)
def test_what_would_be_refused_later_is_refused_at_once(arguments: tuple[str, ...], part: str) -> None:
    """Bad names, ranges and combinations are usage errors: exit code 2, the option's name, and nothing on stdout."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert part in result.stderr
    assert result.stdout == ""


def test_the_help_names_what_can_be_printed() -> None:
    """--help says what each manifest is for, and which are printed without arguments."""
    text = run("--help").output
    for name in ("kubevirt", "hco", "nad", "vm", "plugin"):
        assert re.search(rf"^ +{name} ", text, re.MULTILINE)
    assert "without it, kubevirt nad vm" in text

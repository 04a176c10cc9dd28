"""`kubevirt define` on files: its input, its output and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from userspace_cni.cli.main import userspace_cni
from userspace_cni.pod import launcher

DOMAIN = """<domain type="kvm">
  <name>default_vm</name>
  <vcpu>2</vcpu>
  <devices>
    <emulator>/usr/bin/qemu</emulator>
  </devices>
</domain>
"""
SOCKET = launcher.socket_path(launcher.interface_name("blue"))
ADDED = [
    "+  <memoryBacking>",
    "+    <source type='memfd'/>",
    "+    <access mode='shared'/>",
    "+  </memoryBacking>",
    "+    <interface type='vhostuser'>",
]


def instance(**annotations: str) -> dict[str, Any]:
    """A VM of network `blue` in namespace `there`."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "there", "annotations": annotations},
        "spec": {
            "domain": {"devices": {"interfaces": [{"name": "blue", "binding": {"name": "vhostuser"}}]}},
            "networks": [{"name": "blue", "multus": {"networkName": "blue"}}],
        },
    }


def machine(**annotations: str) -> dict[str, Any]:
    """The same as VirtualMachine, in no namespace; its own annotations are not read."""
    made = instance(**annotations)
    template = {"metadata": {"annotations": annotations}, "spec": made["spec"]}
    metadata = {"name": "vm", "annotations": {"userspace/vhostuser": "no JSON"}}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": {"template": template}}


def mac(namespace: str) -> str:
    """What plugin and sidecar both derive for that VM."""
    return launcher.derive_mac(namespace, "vm", launcher.interface_name("blue"))


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    path = tmp_path / "domain.xml"
    path.write_text(DOMAIN)
    return path


def written(tmp_path: Path, *documents: dict[str, Any]) -> Path:
    path = tmp_path / "vm.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def define(*arguments: object, code: int = 0, stdin: str | bytes | None = None) -> Result:
    """One call of the command, which has to end with this code."""
    result = CliRunner().invoke(userspace_cni, ["kubevirt", "define", *map(str, arguments)], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.parametrize(("made", "namespace"), [(instance, "there"), (machine, "default")], ids=["instance", "machine"])
def test_the_definition_is_on_stdout_and_why_on_stderr(tmp_path: Path, domain: Path, made: Any, namespace: str) -> None:
    """A VMI is read as it is, a VM by its template; stdout has only XML, stderr a line per network."""
    result = define(written(tmp_path, made()), domain)
    assert result.stdout.startswith("<domain ")
    assert result.stdout.endswith("</domain>\n")
    assert f"path='{SOCKET}' mode='server'" in result.stdout
    assert f"<mac address='{mac(namespace)}'/>" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"network blue: socket {SOCKET} from the deterministic path ")


def test_json_and_other_objects_in_the_file(tmp_path: Path, domain: Path) -> None:
    """JSON is read like YAML, and the one VM of a file is found among other objects."""
    path = tmp_path / "vm.json"
    path.write_text(json.dumps(instance()))
    others = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}, instance()]
    assert define(path, domain).stdout == define(written(tmp_path, *others), domain).stdout


@pytest.mark.parametrize("which", ["vmi", "domain"])
def test_one_of_them_from_stdin(tmp_path: Path, domain: Path, which: str) -> None:
    """Either file may be stdin, with the same result."""
    vmi = written(tmp_path, instance())
    arguments, stdin = (("-", domain), vmi.read_text()) if which == "vmi" else ((vmi, "-"), DOMAIN)
    assert define(*arguments, stdin=stdin).stdout == define(vmi, domain).stdout


def test_a_definition_that_has_it_comes_back_byte_by_byte(tmp_path: Path, domain: Path) -> None:
    """The output as input gives the same output, also with characters beyond ASCII; a line says that nothing changed."""
    vmi = written(tmp_path, instance())
    domain.write_text(DOMAIN.replace("<vcpu>", "<title>Überall → hier</title>\n  <vcpu>"), encoding="utf-8")
    once = define(vmi, domain)
    again = define(vmi, "-", stdin=once.stdout_bytes)
    assert again.stdout_bytes == once.stdout_bytes
    assert "Überall → hier" in once.stdout_bytes.decode()
    assert again.stderr.splitlines()[-1] == "nothing to change: all of it is in the domain already"


def test_diff_shows_what_is_added_and_nothing_else(tmp_path: Path, domain: Path) -> None:
    """With --diff there are added lines in a unified diff, none that is gone, and no colours where no terminal is."""
    lines = define("--diff", written(tmp_path, instance()), domain).stdout.splitlines()
    assert lines[:2] == [f"--- {domain}", "+++ domain.xml with its interfaces"]
    assert [line for line in lines if line in ADDED] == ADDED
    assert [line for line in lines[2:] if line.startswith("-")] == []
    assert not any("\x1b" in line for line in lines)


def test_diff_of_what_is_there_already(tmp_path: Path, domain: Path) -> None:
    """Where nothing changes there is no diff."""
    vmi = written(tmp_path, instance())
    assert define("--diff", vmi, "-", stdin=define(vmi, domain).stdout).stdout == ""


def test_network_info_tells_mac_and_mtu(tmp_path: Path, domain: Path) -> None:
    """The downward API's values are used: the MAC, and the MTU as the policy has it for that libvirt."""
    told = tmp_path / "network-info"
    told.write_text(json.dumps({"interfaces": [{"network": "blue", "mac": "02:00:00:00:00:07", "mtu": 9000}]}))
    arguments = ("--network-info", told, written(tmp_path, instance()), domain)
    assert "<mac address='02:00:00:00:00:07'/>" in define(*arguments).stdout
    sizes = {}
    for options in ((), ("--mtu", "auto"), ("--mtu", "auto", "--libvirt", "12.8"), ("--mtu", "override")):
        told_xml = define(*options, *arguments).stdout
        sizes[options] = ("<mtu size='9000'/>" in told_xml, "host_mtu" in told_xml)
    assert list(sizes.values()) == [(False, False), (False, False), (True, False), (False, True)]


def test_another_binding(tmp_path: Path, domain: Path) -> None:
    """Interfaces with the named binding are ours; a VM without one is refused, with the bindings that it has."""
    vmi = instance()
    vmi["spec"]["domain"]["devices"]["interfaces"][0]["binding"]["name"] = "dpdk"
    path = written(tmp_path, vmi)
    assert SOCKET in define("--binding", "dpdk", path, domain).stdout
    result = define(path, domain, code=1)
    message = "error  other-binding: no interface of VM there/vm has the binding 'vhostuser', but: dpdk"
    assert (result.stdout, result.stderr.splitlines()[0]) == ("", message)


@pytest.mark.parametrize(
    ("trap", "options", "annotation"),
    [
        ("path-not-allowed", (), {"blue": {"path": "/etc/s"}}),
        ("queues-over-vcpus", (), {"blue": {"queues": 4}}),
        ("bad-input", (), {"green": {}}),
        ("mtu-element", ("--mtu", "element", "--libvirt", "9.0.0"), {}),
    ],
)
def test_what_the_sidecar_refuses(
    tmp_path: Path, domain: Path, trap: str, options: tuple[str, ...], annotation: dict[str, Any]
) -> None:
    """A refusal ends with exit code 1, nothing on stdout, and at the end of stderr the trap's name, why, and what to do."""
    vmi = written(tmp_path, instance(**{"userspace/vhostuser": json.dumps(annotation)}))
    result = define(*options, vmi, domain, code=1)
    assert result.stdout == ""
    error, remedy = result.stderr.splitlines()[-2:]
    assert error.startswith(f"error  {trap}: ")
    assert remedy.startswith("  do   ")


def test_a_domain_that_is_none(tmp_path: Path, domain: Path) -> None:
    """XML of something else is refused as the sidecar refuses it."""
    domain.write_text("<network/>")
    result = define(written(tmp_path, instance()), domain, code=1)
    assert "error  bad-input: the definition's root is <network>" in result.stderr


def test_files_that_are_none_of_these(tmp_path: Path, domain: Path) -> None:
    """A file that is not there, cannot be read or holds something else ends with exit code 2, named, with what it must be."""
    vmi, empty, nothing = written(tmp_path, instance()), tmp_path / "empty", tmp_path / "nothing"
    empty.touch()
    assert "nothing' does not exist" in define(nothing, domain, code=2).stderr
    assert f"file {empty}: there is nothing in it; look at the file" in define(empty, domain, code=2).stderr
    assert f"file {empty}: there is nothing in it; look at the file" in define(vmi, empty, code=2).stderr
    assert f"file {vmi} is not XML: it must be" in define(vmi, vmi, code=2).stderr
    assert f"file {domain} has 0 objects of kind VirtualMachine" in define(domain, domain, code=2).stderr
    assert "stdin can be one of them" in define("-", "-", code=2).stderr
    assert "'9' is not a version" in define("--libvirt", "9", vmi, domain, code=2).stderr
    two = written(tmp_path, instance(), machine())
    assert f"file {two} has 2 objects of kind VirtualMachine" in define(two, domain, code=2).stderr


@pytest.mark.parametrize("spec", [None, [], "text", {"template": 1}, {"template": {"metadata": [], "spec": None}}])
def test_a_machine_with_anything_for_a_template(tmp_path: Path, domain: Path, spec: Any) -> None:
    """Any value as the template gives a VM without our interface or an input error, never a crash."""
    result = define(written(tmp_path, {**machine(), "spec": spec}), domain, code=1)
    assert result.stderr.startswith("error  other-binding: ")

"""The messages are KubeVirt's on the wire, and the generated modules are made from the .proto files beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubevirt.protocol import info_pb2, plugins_pb2, v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2

ROOT = Path(__file__).resolve().parents[3]
DIRECTORY = ROOT / "kubevirt" / "protocol"
FILES = sorted(DIRECTORY.glob("*.proto"))


def test_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    """The command in the package's docstring makes exactly the modules that are there."""
    names = [str(path.relative_to(ROOT)) for path in FILES]
    argv = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *names]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
    made = {path.name: path.read_text() for path in (tmp_path / "kubevirt" / "protocol").iterdir()}
    there = {path.name: path.read_text() for path in DIRECTORY.glob("*_pb2.py*")}
    assert made == there
    assert len(made) == 2 * len(FILES)


def test_the_command_is_documented() -> None:
    """The package's docstring has the command that the test above runs."""
    text = (DIRECTORY / "__init__.py").read_text()
    assert "python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kubevirt/protocol/*.proto" in text


CALLBACKS = {"OnDefineDomain", "PreCloudInitIso", "Shutdown"}


@pytest.mark.parametrize(
    ("module", "service", "methods"),
    [
        (info_pb2, "kubevirt.hooks.info.Info", {"Info"}),
        (v1alpha1_pb2, "kubevirt.hooks.v1alpha1.Callbacks", CALLBACKS - {"PreCloudInitIso", "Shutdown"}),
        (v1alpha2_pb2, "kubevirt.hooks.v1alpha2.Callbacks", CALLBACKS - {"Shutdown"}),
        (v1alpha3_pb2, "kubevirt.hooks.v1alpha3.Callbacks", CALLBACKS),
        (plugins_pb2, "kubevirt.hooks.plugins.v1alpha1.DomainHookService", {"MutateDomain"}),
        (plugins_pb2, "kubevirt.hooks.plugins.v1alpha1.LauncherHookService", {"GuestDefinition"}),
    ],
)
def test_names_on_the_wire(module: object, service: str, methods: set[str]) -> None:
    """Packages, services and methods have KubeVirt's names."""
    services = module.DESCRIPTOR.services_by_name.values()  # type: ignore[attr-defined]
    (found,) = [each for each in services if each.full_name == service]
    assert {method.name for method in found.methods} == methods


def test_numbers_on_the_wire() -> None:
    """Fields have KubeVirt's numbers. The test writes the bytes out by hand."""
    result = info_pb2.InfoResult(name="n", versions=["v"], hookPoints=[info_pb2.HookPoint(name="h", priority=1)])
    assert result.SerializeToString(deterministic=True) == b"\x0a\x01n\x1a\x05\x0a\x01h\x10\x01\x22\x01v"
    for file in (v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2):
        assert file.OnDefineDomainParams(domainXML=b"d", vmi=b"v").SerializeToString() == b"\x0a\x01d\x12\x01v"
        assert file.OnDefineDomainResult(domainXML=b"d").SerializeToString() == b"\x0a\x01d"
    for iso in (v1alpha2_pb2, v1alpha3_pb2):
        asked = iso.PreCloudInitIsoParams(cloudInitNoCloudSource=b"o", vmi=b"v", cloudInitData=b"n")
        assert asked.SerializeToString() == b"\x0a\x01o\x12\x01v\x1a\x01n"
        answer = iso.PreCloudInitIsoResult(cloudInitNoCloudSource=b"o", cloudInitData=b"n")
        assert answer.SerializeToString() == b"\x0a\x01o\x1a\x01n"
    context = plugins_pb2.SidecarContext(invocation_context="B")
    for message in (plugins_pb2.MutateDomainRequest, plugins_pb2.GuestDefinitionRequest):
        request = message(domain_type="t", domain=b"d", vmi=b"v", sidecar_context=context)
        assert request.SerializeToString() == b"\x0a\x01t\x12\x01d\x1a\x01v\x22\x03\x0a\x01B"
    for response in (plugins_pb2.MutateDomainResponse, plugins_pb2.GuestDefinitionResponse):
        assert response(domain=b"d").SerializeToString() == b"\x0a\x01d"

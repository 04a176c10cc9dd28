"""The messages are the kubelet's on the wire; these and the runtime's generated modules are made of the files beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from userspace_cni.deviceplugin.protocol import v1beta1_pb2 as v1beta1
from userspace_cni.dra.protocol import dra_v1_pb2 as dra
from userspace_cni.dra.protocol import dra_v1beta1_pb2 as dra_beta
from userspace_cni.dra.protocol import health_v1_pb2 as health
from userspace_cni.dra.protocol import health_v1alpha1_pb2 as health_alpha
from userspace_cni.dra.protocol import pluginregistration_v1_pb2 as registration
from userspace_cni.host.runtimes.podresources import v1_pb2 as v1

ROOT = Path(__file__).resolve().parents[3]
DIRECTORIES = (
    "userspace_cni/deviceplugin/protocol",
    "userspace_cni/dra/protocol",
    "userspace_cni/host/runtimes/cri",
    "userspace_cni/host/runtimes/podresources",
)


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_generated_modules(directory: str, tmp_path: Path) -> None:
    """The command in the package's docstring makes exactly the modules that are there."""
    assert (
        f"grpc_tools.protoc -I. --python_out=. --pyi_out=. {directory}/*.proto" in (ROOT / directory / "__init__.py").read_text()
    )
    names = [str(path.relative_to(ROOT)) for path in (ROOT / directory).glob("*.proto")]
    argv = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *names]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
    made = {path.name: path.read_text() for path in (tmp_path / directory).iterdir()}
    assert made == {path.name: path.read_text() for path in (ROOT / directory).glob("*_pb2.py*")}
    assert len(made) == 2 * len(names)


def test_names_of_the_kubelets_services() -> None:
    """Packages, services and methods are named as the kubelet calls them."""
    found = {
        service.full_name: {method.name for method in service.methods}
        for module in (v1beta1, v1, dra, dra_beta, health, health_alpha, registration)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert found == {
        "v1beta1.Registration": {"Register"},
        "v1beta1.DevicePlugin": {"GetDevicePluginOptions", "ListAndWatch", "Allocate"},
        "v1.PodResourcesLister": {"List"},
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": {"NodePrepareResources", "NodeUnprepareResources"},
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin": {"NodePrepareResources", "NodeUnprepareResources"},
        "v1.DRAResourceHealth": {"NodeWatchResources"},
        "v1alpha1.DRAResourceHealth": {"NodeWatchResources"},
        "pluginregistration.Registration": {"GetInfo", "NotifyRegistrationStatus"},
    }


def test_numbers_of_the_kubelets_fields() -> None:
    """Fields travel under the kubelet's numbers; the bytes are written out by hand."""
    request = v1beta1.RegisterRequest(version="v", endpoint="e", resource_name="r", options=v1beta1.DevicePluginOptions())
    assert request.SerializeToString() == b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x00"
    topology = v1beta1.TopologyInfo(nodes=[v1beta1.NUMANode(ID=1)])
    listed = v1beta1.ListAndWatchResponse(devices=[v1beta1.Device(ID="d", health="h", topology=topology)])
    assert listed.SerializeToString() == b"\x0a\x0c\x0a\x01d\x12\x01h\x1a\x04\x0a\x02\x08\x01"
    asked = v1beta1.AllocateRequest(container_requests=[v1beta1.ContainerAllocateRequest(devices_ids=["d"])])
    assert asked.SerializeToString() == b"\x0a\x03\x0a\x01d"
    mount = v1beta1.Mount(container_path="c", host_path="h", read_only=True)
    container = v1beta1.ContainerAllocateResponse(envs={"k": "v"}, mounts=[mount])
    answer = v1beta1.AllocateResponse(container_responses=[container])
    assert answer.SerializeToString() == b"\x0a\x12\x0a\x06\x0a\x01k\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01"
    devices = v1.ContainerDevices(resource_name="r", device_ids=["d"])
    pod = v1.PodResources(name="n", namespace="s", containers=[v1.ContainerResources(name="c", devices=[devices])])
    pods = v1.ListPodResourcesResponse(pod_resources=[pod])
    assert pods.SerializeToString() == b"\x0a\x13\x0a\x01n\x12\x01s\x1a\x0b\x0a\x01c\x12\x06\x0a\x01r\x12\x01d"


@pytest.mark.parametrize("version", [dra, dra_beta])
def test_numbers_of_a_claims_fields(version: Any) -> None:
    """Both versions of the API for drivers have the kubelet's numbers."""
    asked = version.NodePrepareResourcesRequest(claims=[version.Claim(namespace="s", uid="u", name="n")])
    assert asked.SerializeToString() == b"\x0a\x09\x0a\x01s\x12\x01u\x1a\x01n"
    device = version.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"])
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c"
    answer = version.NodePrepareResourcesResponse(claims={"u": version.NodePrepareResourceResponse(error="e")})
    assert answer.SerializeToString() == b"\x0a\x08\x0a\x01u\x12\x03\x12\x01e"
    undone = version.NodeUnprepareResourcesResponse(claims={"u": version.NodeUnprepareResourceResponse(error="e")})
    assert undone.SerializeToString() == b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01e"


def test_numbers_of_registration_and_health() -> None:
    """The other services' fields, too."""
    info = registration.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
    assert registration.RegistrationStatus(plugin_registered=True, error="e").SerializeToString() == b"\x08\x01\x12\x01e"
    device = health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name="p", device_name="d"),
        health=health.UNHEALTHY,
        last_updated_time=1,
        health_check_timeout_seconds=2,
        message="m",
    )
    assert device.SerializeToString() == b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x01\x20\x02\x2a\x01m"

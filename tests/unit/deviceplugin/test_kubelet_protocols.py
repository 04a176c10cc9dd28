"""The messages are the kubelet's on the wire; these and the runtime's generated modules are made of the files beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from userspace_cni.deviceplugin.protocol import v1beta1_pb2 as v1beta1
from userspace_cni.host.runtimes.podresources import v1_pb2 as v1

ROOT = Path(__file__).resolve().parents[3]
DIRECTORIES = (
    "userspace_cni/deviceplugin/protocol",
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
    assert len(made) == 2


def test_names_of_the_kubelets_services() -> None:
    """Packages, services and methods are named as the kubelet calls them."""
    found = {
        service.full_name: {method.name for method in service.methods}
        for module in (v1beta1, v1)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert found == {
        "v1beta1.Registration": {"Register"},
        "v1beta1.DevicePlugin": {"GetDevicePluginOptions", "ListAndWatch", "Allocate"},
        "v1.PodResourcesLister": {"List"},
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

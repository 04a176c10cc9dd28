"""Claims of a VM's networks: which metadata is whose, what the claim itself tells, and what a stranger may write there."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubevirt.json_input import BYTES_MAX
from kubevirt.sidecar_errors import BadInput
from kubevirt.socket_search import SidecarPlaces, resolve
from kubevirt.vm_socket_source import VmSocketSource
from kubevirt.vmi import NetworkClaim, VirtualMachine, VmNetwork, read_vmi
from tests.unit.kubevirt.test_kubevirt_sources import Bed, machine, refused
from userspace_cni.pod import claimed, launcher

TEMPLATES = "resourceclaimtemplates"


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def claim_vm(*requests: str, named: str | None = "") -> VirtualMachine:
    """A VM with a network for each of these requests of its claim `dpdk`, by default made of a template."""
    return machine(*(VmNetwork(f"net-{each}", claim=NetworkClaim("dpdk", each, named)) for each in requests))


def test_which_claim_is_the_networks(bed: Bed) -> None:
    """The VM says whether a claim is made of a template or named: another claim with a request of that name is not taken."""
    bed.claim("resourceclaims/mine/port/d-metadata.json", "/var/run/mine/vhost.sock")
    bed.claim("resourceclaims/other/port/d-metadata.json", "/var/run/other/vhost.sock")
    spec: dict[str, Any] = {
        "networks": [{"name": "net1", "resourceClaim": {"claimName": "dpdk", "requestName": "port"}}],
        "domain": {"devices": {"interfaces": [{"name": "net1", "binding": {"name": "vhostuser"}}]}},
        "resourceClaims": [{"name": "else", "resourceClaimName": "other"}, {"name": "dpdk", "resourceClaimName": "mine"}],
    }
    vmi = {"metadata": {"namespace": "tenant", "name": "vm1"}, "spec": spec}
    assert bed.resolve(read_vmi(vmi))["net1"].path == "/var/run/mine/vhost.sock"
    spec["resourceClaims"] = [{"name": "dpdk", "resourceClaimTemplateName": "mine"}]
    assert refused(bed, read_vmi(vmi)).name == "dra-not-mounted"
    bed.claim(f"{TEMPLATES}/dpdk/port/d-metadata.json", "/var/run/made/vhost.sock")
    assert bed.resolve(read_vmi(vmi))["net1"].path == "/var/run/made/vhost.sock"


def test_two_requests_of_one_claim(bed: Bed) -> None:
    """Two networks of a VM have two requests of one claim: each gets its own socket."""
    for request in ("a", "b"):
        bed.claim(f"{TEMPLATES}/dpdk/{request}/d-metadata.json", f"/var/run/{request}/vhost.sock")
    found = bed.resolve(claim_vm("a", "b"))
    assert {name: each.path for name, each in found.items()} == {
        "net-a": "/var/run/a/vhost.sock",
        "net-b": "/var/run/b/vhost.sock",
    }


def test_a_request_that_the_claim_has_not(bed: Bed) -> None:
    """A wrong name of a request is told with the names that the claim has."""
    bed.claim(f"{TEMPLATES}/dpdk/port/d-metadata.json")
    error = refused(bed, claim_vm("prot"))
    assert (error.name, "but: port" in error.message) == ("no-source", True)


def test_a_request_without_metadata(bed: Bed) -> None:
    """A directory of the request with nothing in it is no wrong name."""
    (bed.claims / TEMPLATES / "dpdk" / "port").mkdir(parents=True)
    assert refused(bed, claim_vm("port")).name == "dra-not-mounted"


def test_another_drivers_claim(bed: Bed) -> None:
    """A device without a socket, as that of a driver of NICs, is no source, and the file is named."""
    bed.claim(f"{TEMPLATES}/dpdk/port/nics.example-metadata.json", "", pciBusID={"string": "0000:01:00.0"})
    error = refused(bed, claim_vm("port"))
    assert error.name == "no-source"
    assert "nics.example-metadata.json" in error.message


def test_the_vms_own_mac_is_taken(bed: Bed) -> None:
    """No driver is told the VM's MAC, so that its own choice gives way; the log has both."""
    network = VmNetwork("net1", claim=NetworkClaim("dpdk", "port", ""))
    bed.claim(f"{TEMPLATES}/dpdk/port/d-metadata.json", mac="02:00:00:00:00:01")
    assert bed.resolve(machine(network))["net1"].mac == "02:00:00:00:00:01"
    assert bed.resolve(machine(network, mac="02:00:00:00:00:02"))["net1"].mac == "02:00:00:00:00:02"
    assert "MAC 02:00:00:00:00:02 of the VM, in place of the claim's, 02:00:00:00:00:01" in bed.lines[-1]


class TestDirectory:
    """The claim in the sidecar's container, without metadata: a variable and the directory of the device."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        made = tmp_path / "vm-1"
        made.mkdir()
        return made

    def look(self, bed: Bed, directories: str, named: str = "") -> dict[str, VmSocketSource]:
        """The sources where the variable of claim and request names these."""
        variable = {claimed.variable(named or "dpdk", "port"): directories}
        places: SidecarPlaces = replace(bed.places, environment=variable, cluster_roots=("/",))
        return resolve(claim_vm("port", named=named), "vhostuser", places, 0.0, bed.lines.append)

    @pytest.mark.parametrize("named", ["", "mine"])
    def test_a_vms_device(self, bed: Bed, directory: Path, named: str) -> None:
        """Socket and MAC follow from names, as the agent derives them."""
        called = f"resourceclaims/{named}" if named else f"{TEMPLATES}/dpdk"
        mac = launcher.derive_mac("tenant", "vm1", f"{called}/port/0")
        found = self.look(bed, str(directory), named)
        assert found == {"net-port": VmSocketSource(f"{directory}/vhost.sock", mac, "server", None, "claim")}
        assert "from the directory of claim 'dpdk' (DRA: claim 'dpdk', request 'port': no device metadata" in bed.lines[-1]

    def test_metadata_comes_first(self, bed: Bed, directory: Path) -> None:
        """The driver's metadata is asked before the directory."""
        bed.claim(f"{TEMPLATES}/dpdk/port/d-metadata.json")
        assert self.look(bed, str(directory))["net-port"].origin == "dra"

    def test_a_device_for_applications(self, bed: Bed, directory: Path) -> None:
        """Without the consumer kubevirt the socket has another name, and a file beside it says which."""
        entry = {
            "config": {"vhost": {"socketfile": "u1"}},
            "ipResult": {"interfaces": [{"mac": "02:00:00:00:00:01", "mtu": 9000}]},
        }
        (directory / "configData-u1.json").write_text(json.dumps(entry))
        source = self.look(bed, str(directory))["net-port"]
        assert (source.path, source.mac, source.mtu) == (f"{directory}/u1", "02:00:00:00:00:01", 9000)

    @pytest.mark.parametrize("directories", ["", "relative", "/nonexistent/vm-1", "/tmp:/tmp"])
    def test_no_single_directory(self, bed: Bed, directories: str) -> None:
        """Without one directory that is there, the message is that of the missing metadata."""
        with pytest.raises(Exception, match="no device metadata"):
            self.look(bed, directories)

    def test_what_qemu_may_write(self, bed: Bed, directory: Path) -> None:
        """QEMU can write in the directory: what is no file, too large, or names a socket elsewhere is refused, and read at most
        to its bound."""
        file = directory / "configData-u1.json"
        hostile: list[Any] = [
            {"config": {"vhost": {"socketfile": "../../etc/x"}}},
            {"config": {"vhost": {}}},
            {"config": []},
            ["a"],
            {"config": {"vhost": {"socketfile": "u1"}}, "ipResult": {"interfaces": {}}},
            {"config": {"vhost": {"socketfile": "u1"}}, "ipResult": {"interfaces": [{"mac": "ff:ff:ff:ff:ff:ff"}]}},
        ]
        texts = [*map(json.dumps, hostile), "[" * 1000, " " * (BYTES_MAX + 1), "{" * 30000]
        for text in texts:
            file.write_text(text)
            with pytest.raises(BadInput):
                self.look(bed, str(directory))
        file.unlink()
        other = bed.podinfo.parent / "other"
        other.write_text('{"config": {"vhost": {"socketfile": "u1"}}}')
        file.symlink_to(other)
        with pytest.raises(BadInput, match="cannot be opened"):
            self.look(bed, str(directory))
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(BadInput, match="not a regular file"):
            self.look(bed, str(directory))


@pytest.mark.parametrize("text", ["{" * 30000, "[" * 1000, " " * (BYTES_MAX + 1), "\xff", "{}{}", '{"apiVersion": "v9"}'])
def test_a_hostile_metadata_file(bed: Bed, text: str) -> None:
    """What cannot be metadata is refused within bounds, and not passed over for the claim's directory."""
    file = bed.claims / TEMPLATES / "dpdk" / "port" / "d-metadata.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("latin-1"))
    places = replace(bed.places, environment={claimed.variable("dpdk", "port"): str(bed.claims)}, cluster_roots=("/",))
    with pytest.raises(BadInput):
        resolve(claim_vm("port"), "vhostuser", places, 0.0, bed.lines.append)

"""Where a VM's sockets are: which source is used, how long it is waited for, and what is refused."""

from __future__ import annotations

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kubevirt.annotation import ANNOTATION
from kubevirt.patience import Patience
from kubevirt.sidecar_errors import BadInput, DefinitionRefused
from kubevirt.socket_search import SidecarPlaces, resolve
from kubevirt.vm_socket_source import VmSocketSource
from kubevirt.vmi import NetworkClaim, VirtualMachine, VmInterface, VmNetwork
from tests.lab.switch.switch import wait_until
from userspace_cni.pod import launcher

DATA = Path(__file__).parent / "data"
LONG_S = 60.0
NEVER_S = 3600.0
"""Longer than a test may take, so that waiting for it fails."""


class Bed:
    """The container of one sidecar: its files, and its log."""

    def __init__(self, directory: Path) -> None:
        self.podinfo = directory / "podinfo" / "network-info"
        self.podinfo.parent.mkdir()
        self.claims = directory / "claims"
        self.lines: list[str] = []
        self.patience = Patience(0)

    @property
    def places(self) -> SidecarPlaces:
        """The arguments of the resolver. Nothing is waited for unless a test says so."""
        return SidecarPlaces(str(self.podinfo), str(self.claims), self.patience)

    def resolve(self, machine: VirtualMachine, deadline_s: float = LONG_S) -> dict[str, VmSocketSource]:
        """The sources that are found for binding `vhostuser`."""
        return resolve(machine, "vhostuser", self.places, deadline_s, self.lines.append)

    def tell(self, *entries: dict[str, Any]) -> None:
        """Set network-info to this content."""
        self.podinfo.write_text(json.dumps({"interfaces": list(entries)}))

    def claim(self, path: str, socket: str = "/var/run/ovsdpdk/vhost/port/vhost.sock", mac: str = "", **attributes: Any) -> None:
        """Write a driver's metadata file at `path` below the claims."""
        file = self.claims / path
        file.parent.mkdir(parents=True, exist_ok=True)
        told = {"vhost-user-path": {"string": socket}} if socket else {}
        device = {"driver": "d.example", "attributes": {**told, **attributes}, "networkData": {"hardwareAddress": mac}}
        requests = [{"name": file.parent.name, "devices": [device]}]
        file.write_text(json.dumps({"apiVersion": "metadata.resource.k8s.io/v1alpha1", "requests": requests}))


class Clock:
    """A clock that shows the seconds that a test sets. No time passes."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def tick(self) -> bool:
        """Let a moment pass; returns False, as for something that is not there before."""
        self.now += 0.001
        return False


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    """A container where nothing is mounted."""
    return Bed(tmp_path)


def machine(*networks: VmNetwork | str, mac: str = "", binding: str = "vhostuser", spec: Any = None) -> VirtualMachine:
    """A VM with an interface of that binding on each network. A name stands for a network of Multus."""
    known = [VmNetwork(each, multus=f"{each}-nad") if isinstance(each, str) else each for each in networks]
    return VirtualMachine(
        "tenant",
        "vm1",
        interfaces=tuple(VmInterface(each.name, binding, mac=mac) for each in known),
        networks={each.name: each for each in known},
        annotations={ANNOTATION: json.dumps(spec)} if spec is not None else {},
    )


def vhost_user(path: str, mode: str = "server") -> dict[str, Any]:
    return {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": mode, "path": path}}


def refused(bed: Bed, vm: VirtualMachine) -> DefinitionRefused:
    with pytest.raises(DefinitionRefused) as caught:
        bed.resolve(vm)
    return caught.value


def test_without_any_word_the_path_follows_from_the_names(bed: Bed) -> None:
    """Without file and annotation, path, MAC and role are derived as the plugin derives them."""
    name = launcher.interface_name("net1")
    assert bed.resolve(machine("net1")) == {
        "net1": VmSocketSource(launcher.socket_path(name), launcher.derive_mac("tenant", "vm1", name), "server", None, "path")
    }
    (line,) = bed.lines
    for part in ("network net1", launcher.socket_path(name), "no resourceClaim", "no such file", "no path", "derived", "MTU"):
        assert part in line


def test_the_pods_own_network_is_eth0(bed: Bed) -> None:
    """The primary interface is called eth0, not by a hash."""
    found = bed.resolve(machine(VmNetwork("default", pod=True)))["default"]
    assert found.path == launcher.socket_path("eth0")
    assert found.mac == launcher.derive_mac("tenant", "vm1", "eth0")


def test_a_name_too_long_for_the_pods_name_derives_the_same_mac(bed: Bed) -> None:
    """The plugin knows only the part of a long VM name that is in the pod's name. The MAC is the same."""
    vm = machine("net1")
    long = VirtualMachine("tenant", "v" * 60, interfaces=vm.interfaces, networks=vm.networks)
    pod = f"virt-launcher-{'v' * 60}-"[:58] + "abcde"
    expected = launcher.derive_mac("tenant", launcher.machine_of_pod(pod), launcher.interface_name("net1"))
    assert bed.resolve(long)["net1"].mac == expected


def test_other_bindings_are_not_ours(bed: Bed) -> None:
    """A VM whose interfaces have other bindings has no sources, and no file is read."""
    bed.podinfo.write_text("not JSON")
    assert bed.resolve(machine("net1", binding="passt", spec="not an object")) == {}


def test_device_info_comes_before_names_and_annotation(bed: Bed) -> None:
    """A device plugin's path, role, MAC and MTU are used. The log names the path that is not used."""
    bed.tell({"network": "net1", "deviceInfo": vhost_user("/var/run/dp/s0", "client"), "mac": "02:00:00:00:00:01", "mtu": 9000})
    vm = machine("net1", spec={"net1": {"path": "/var/run/kubevirt/mine.sock", "queues": 2}})
    assert bed.resolve(vm) == {
        "net1": VmSocketSource("/var/run/dp/s0", "02:00:00:00:00:01", "client", 9000, "device-info", queues=2)
    }
    assert "network-info" in bed.lines[0]
    assert "'/var/run/kubevirt/mine.sock' is not used" in bed.lines[0]


def test_an_entry_without_device_info_gives_mac_and_mtu(bed: Bed) -> None:
    """KubeVirt passes only MAC and MTU for our own plugin. The path is derived from the names."""
    bed.tell({"network": "net1", "mac": "02:00:00:00:00:01", "mtu": 1400})
    found = bed.resolve(machine("net1"))["net1"]
    assert (found.origin, found.mac, found.mtu) == ("path", "02:00:00:00:00:01", 1400)
    assert "no device-info" in bed.lines[0]


def test_an_explicit_path_comes_before_the_one_by_names(bed: Bed) -> None:
    """A path in the annotation is for a CNI without device-info. Tuning works with any source."""
    spec = {"net1": {"path": "/var/run/vhostuser/a.sock", "mode": "client", "mtu": 9000, "rxQueueSize": 1024}}
    found = bed.resolve(machine("net1", spec=spec))["net1"]
    assert (found.path, found.mode, found.mtu, found.origin) == ("/var/run/vhostuser/a.sock", "client", 9000, "annotation")
    assert (found.rx_queue_size, found.tx_queue_size) == (1024, None)


@pytest.mark.parametrize(
    "path",
    [
        "resourceclaimtemplates/vhost/port/d.example-metadata.json",
        "resourceclaims/any-name/port/d.example-metadata.json",
        "vhost/port/metadata.json",
    ],
)
@pytest.mark.parametrize("request_name", ["port", ""])
def test_dra_metadata_is_found_in_every_layout(bed: Bed, path: str, request_name: str) -> None:
    """Claims from templates, claims by name and early drivers work, with and without the request's name."""
    bed.claim(path, mtu={"int": 1500})
    found = bed.resolve(machine(VmNetwork("net1", claim=NetworkClaim("vhost", request_name))))["net1"]
    assert (found.path, found.mtu, found.origin) == ("/var/run/ovsdpdk/vhost/port/vhost.sock", 1500, "dra")
    assert "claim 'vhost' (d.example)" in bed.lines[0]


def test_the_file_as_kubernetes_writes_it_is_read(bed: Bed) -> None:
    """Of a stream with two versions the first is used."""
    file = bed.claims / "resourceclaimtemplates" / "vhost" / "vhost-port" / "d-metadata.json"
    file.parent.mkdir(parents=True)
    file.write_bytes((DATA / "dra-metadata.json").read_bytes())
    found = bed.resolve(machine(VmNetwork("net1", claim=NetworkClaim("vhost", "vhost-port"))))["net1"]
    assert (found.path, found.mtu) == ("/var/run/ovsdpdk/vhost/vhost-port/vhost.sock", 1500)


def test_a_claim_that_is_not_mounted_is_refused_with_the_way_out(bed: Bed) -> None:
    """An older KubeVirt does not mount the claim. The path by names is not used instead: no CNI runs for a claim."""
    error = refused(bed, machine(VmNetwork("net1", claim=NetworkClaim("vhost", "port"))))
    assert error.name == "dra-not-mounted"
    assert "KubeVirt 1.10" in error.remedy
    assert "admission policy" in error.remedy


def test_a_claim_that_is_not_mounted_may_have_an_explicit_path(bed: Bed) -> None:
    """A path in the annotation is used instead of the missing claim."""
    spec = {"net1": {"path": "/var/run/ovsdpdk/vhost/port/vhost.sock"}}
    found = bed.resolve(machine(VmNetwork("net1", claim=NetworkClaim("vhost", "port")), spec=spec))["net1"]
    assert found.origin == "annotation"
    assert "no device metadata" in bed.lines[0]


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (
            {"resourceclaims/a/port/d-metadata.json": "/var/run/a", "resourceclaims/b/port/d-metadata.json": "/var/run/b"},
            "several",
        ),
        ({"vhost/port/metadata.json": ""}, "no device with an attribute vhost-user-path"),
    ],
)
def test_metadata_that_does_not_name_one_socket_is_no_source(bed: Bed, files: dict[str, str], part: str) -> None:
    """Metadata without a socket, or with two, is refused with the names of the files."""
    for path, socket in files.items():
        bed.claim(path, socket)
    error = refused(bed, machine(VmNetwork("net1", claim=NetworkClaim("vhost", "port"))))
    assert error.name == "no-source"
    assert part in error.message
    assert next(iter(files)) in error.message


@pytest.mark.parametrize("name", ["..", "a/b", "../../etc", "A", "a\0b"])
def test_names_that_would_leave_the_claims_directory_are_refused(bed: Bed, name: str) -> None:
    """Names become part of paths, so a name that leads elsewhere is refused."""
    with pytest.raises(BadInput, match="not a name that Kubernetes gives"):
        bed.resolve(machine(VmNetwork("net1", claim=NetworkClaim(name, "port"))))


def test_multus_and_claims_in_one_vm_are_remarked(bed: Bed) -> None:
    """KubeVirt's API refuses such a VM. If one comes all the same, the log has the reason."""
    bed.claim("vhost/port/metadata.json")
    bed.resolve(machine("net1", VmNetwork("net2", claim=NetworkClaim("vhost", "port"))))
    assert bed.lines[0].startswith("mixed-multus-and-dra: networks net1 are of Multus and net2 of resource claims")


def test_a_network_of_no_known_kind_is_no_source(bed: Bed) -> None:
    """A network of an unknown kind is refused: nothing says where its socket would be."""
    assert refused(bed, machine(VmNetwork("net1"))).name == "no-source"


def test_an_interface_without_its_network_is_bad_input(bed: Bed) -> None:
    """An interface without a network, which KubeVirt's API refuses, is bad input."""
    vm = machine("net1")
    with pytest.raises(BadInput, match="no network of its name"):
        bed.resolve(VirtualMachine("tenant", "vm1", interfaces=vm.interfaces))


class TestMac:
    """Which MAC is used: the VM's, the attachment's, or the derived one."""

    def test_the_vms_own_is_taken_in_one_form(self, bed: Bed) -> None:
        """The VM's MAC may have capitals and dashes, which KubeVirt accepts. The attachment has the same address."""
        bed.tell({"network": "net1", "mac": "02:00:00:00:00:ab"})
        assert bed.resolve(machine("net1", mac="02-00-00-00-00-AB"))["net1"].mac == "02:00:00:00:00:ab"

    def test_two_different_ones_are_refused(self, bed: Bed) -> None:
        """With two different MACs the switch would deliver to another address than the guest's."""
        bed.tell({"network": "net1", "mac": "02:00:00:00:00:01"})
        error = refused(bed, machine("net1", mac="02:00:00:00:00:02"))
        assert error.name == "mac-mismatch"
        assert "02:00:00:00:00:01" in error.message
        assert "02:00:00:00:00:02" in error.message

    def test_a_group_address_is_bad_input(self, bed: Bed) -> None:
        """A group address, which no interface can have, is bad input."""
        with pytest.raises(BadInput, match="unicast"):
            bed.resolve(machine("net1", mac="03:00:00:00:00:01"))


class TestMtu:
    """The MTU that the annotation asks for, and the MTU of the port."""

    def test_more_than_the_port_has_is_refused(self, bed: Bed) -> None:
        """A larger MTU than the port's is refused: the switch would drop such frames."""
        bed.tell({"network": "net1", "mtu": 1500})
        error = refused(bed, machine("net1", spec={"net1": {"mtu": 9000}}))
        assert error.name == "mtu-mismatch"
        assert "9000" in error.message
        assert "1500" in error.message

    def test_less_than_the_port_has_is_the_guests(self, bed: Bed) -> None:
        """The owner may choose a smaller MTU than the port's."""
        bed.tell({"network": "net1", "mtu": 9000})
        assert bed.resolve(machine("net1", spec={"net1": {"mtu": 1500}}))["net1"].mtu == 1500


def test_a_role_that_contradicts_the_port_is_refused(bed: Bed) -> None:
    """Two clients, or two servers, would never connect."""
    assert refused(bed, machine("net1", spec={"net1": {"mode": "client"}})).name == "server-mode"
    bed.tell({"network": "net1", "deviceInfo": vhost_user("/var/run/dp/s0", "client")})
    assert refused(bed, machine("net1", spec={"net1": {"mode": "server"}})).name == "server-mode"


def test_two_networks_with_one_socket_are_refused(bed: Bed) -> None:
    """Two networks with one socket are refused, also when one of them uses the directory's other name."""
    spec = {"net1": {"path": "/run/kubevirt/a.sock"}, "net2": {"path": "/var/run/kubevirt/a.sock"}}
    error = refused(bed, machine("net1", "net2", spec=spec))
    assert error.name == "socket-name-collision"
    assert "'net1' and 'net2'" in error.message


@pytest.mark.parametrize(
    ("first", "second"), [("/var/run/vhostuser/a", "/var/run/vhostuser/a/b"), ("/run/kubevirt/a/b", "/var/run/kubevirt/a")]
)
def test_a_socket_is_no_directory_for_another(bed: Bed, first: str, second: str) -> None:
    """A path below another's socket cannot be made. A path that only begins alike can."""
    error = refused(bed, machine("net1", "net2", spec={"net1": {"path": first}, "net2": {"path": second}}))
    assert error.name == "socket-name-collision"
    assert first in error.message
    assert second in error.message
    found = bed.resolve(machine("net1", "net2", spec={"net1": {"path": "/run/kubevirt/a"}, "net2": {"path": "/run/kubevirt/ab"}}))
    assert len(found) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/var/run/kubevirt/vhostuser",
        "/run/kubevirt/vhostuser",
        "/var/run/kubevirt/vhostuser/a.sock",
        "/run/kubevirt/vhostuser/a/b",
        launcher.socket_path(launcher.interface_name("net2")),
    ],
)
def test_the_plugins_directory_is_not_the_owners(bed: Bed, path: str) -> None:
    """In the plugin's directory the annotation may name only the network's own socket, by either name of the directory."""
    error = refused(bed, machine("net1", spec={"net1": {"path": path}}))
    assert error.name == "path-not-allowed"
    assert "the plugin's own directory" in error.message
    own = launcher.socket_path(launcher.interface_name("net1"))
    for written in (own, own.removeprefix("/var")):
        assert bed.resolve(machine("net1", spec={"net1": {"path": written}}))["net1"].path == written
    assert bed.resolve(machine("net1", spec={"net1": {"path": "/var/run/kubevirt/vhostuser2"}}))


@pytest.mark.parametrize(
    ("path", "name"), [("/etc/a.sock", "path-not-allowed"), ("/var/run/kubevirt/" + "a" * 100, "path-too-long")]
)
def test_paths_are_looked_at_whoever_gives_them(bed: Bed, path: str, name: str) -> None:
    """Paths from the annotation, a device plugin and a driver are checked alike."""
    error = refused(bed, machine("net1", spec={"net1": {"path": path}}))
    assert error.name == name
    assert "network 'net1', annotation" in error.message
    bed.tell({"network": "net1", "deviceInfo": vhost_user(path)})
    assert refused(bed, machine("net1")).name == name
    bed.claim("vhost/port/metadata.json", path)
    assert refused(bed, machine(VmNetwork("net1", claim=NetworkClaim("vhost", "port")))).name == name


def test_the_annotation_may_point_to_fewer_places(bed: Bed) -> None:
    """A driver's own directory is its administrator's choice; a VM's owner cannot choose one."""
    path = "/var/run/grout/vhu/vhost.sock"
    bed.claim("vhost/port/metadata.json", path)
    assert bed.resolve(machine(VmNetwork("net1", claim=NetworkClaim("vhost", "port"))))["net1"].path == path
    assert refused(bed, machine("net1", spec={"net1": {"path": path}})).name == "path-not-allowed"


class TestWaiting:
    """The sidecar waits for files that may still come, and for nothing else."""

    def test_a_file_that_fills_up_is_waited_for(self, bed: Bed) -> None:
        """The downward API's file is empty at first. Its content is found once it is whole."""
        bed.patience = Patience(LONG_S)
        bed.podinfo.write_text("")
        found: dict[str, VmSocketSource] = {}
        thread = threading.Thread(target=lambda: found.update(bed.resolve(machine("net1"))))
        thread.start()
        bed.podinfo.write_text('{"interfaces": [{"netw')
        assert thread.is_alive()
        fresh = bed.podinfo.with_name("fresh")
        fresh.write_text(json.dumps({"interfaces": [{"network": "net1", "deviceInfo": vhost_user("/var/run/dp/s0")}]}))
        fresh.replace(bed.podinfo)
        thread.join(LONG_S)
        assert found["net1"].path == "/var/run/dp/s0"

    def test_a_filled_file_is_complete(self, bed: Bed) -> None:
        """Multus writes its status once: the sidecar does not wait for an entry that is missing then."""
        bed.patience = Patience(NEVER_S)
        bed.tell({"network": "other"})
        assert bed.resolve(machine("net1"), deadline_s=NEVER_S)["net1"].origin == "path"
        assert "no entry" in bed.lines[0]

    def test_a_file_that_is_not_there_is_not_waited_for(self, bed: Bed) -> None:
        """If the binding is registered without downwardAPI, the file never comes, and the sidecar does not wait for it."""
        bed.patience = Patience(NEVER_S)
        assert bed.resolve(machine("net1"), deadline_s=NEVER_S)["net1"].origin == "path"

    def test_an_empty_file_is_waited_for_no_longer_than_told(self, bed: Bed) -> None:
        """Before KubeVirt 1.8 the file stays empty with our plugin. The wait has a bound, which the deadline shortens."""
        bed.patience = Patience(10 * LONG_S)
        bed.podinfo.write_text("")
        assert bed.resolve(machine("net1"), deadline_s=0.3)["net1"].origin == "path"
        waited = re.search(r"network-info: empty after ([0-9.]+) s", bed.lines[0])
        assert waited
        assert float(waited[1]) >= 0.3

    def test_an_empty_file_is_waited_for_once(self, bed: Bed) -> None:
        """A start of a VM asks three times within 20 s. Only the first call waits; the others find what has come since."""
        clock = Clock()
        bed.patience = Patience(NEVER_S, clock)
        bed.podinfo.write_text("")
        assert bed.resolve(machine("net1"), deadline_s=0.0)["net1"].origin == "path"
        clock.now += NEVER_S
        for _ in range(2):
            assert bed.resolve(machine("net1"), deadline_s=NEVER_S)["net1"].origin == "path"
        assert f"network-info: empty after {NEVER_S:.1f} s" in bed.lines[-1]
        bed.tell({"network": "net1", "deviceInfo": vhost_user("/var/run/dp/s0")})
        assert bed.resolve(machine("net1"), deadline_s=NEVER_S)["net1"].path == "/var/run/dp/s0"

    def test_two_calls_wait_for_one_file_together(self, bed: Bed) -> None:
        """Calls at the same time share one wait, and each finds the file when it has its content."""
        clock = Clock()
        bed.patience = Patience(NEVER_S, clock)
        bed.podinfo.write_text("")
        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(bed.resolve, machine("net1"), NEVER_S) for _ in range(2)]
            wait_until(lambda: bed.patience.spent("empty") or clock.tick(), what="a call to miss the file")
            assert not any(call.done() for call in calls)
            bed.tell({"network": "net1", "deviceInfo": vhost_user("/var/run/dp/s0")})
            assert {call.result(LONG_S)["net1"].path for call in calls} == {"/var/run/dp/s0"}

    def test_what_goes_wrong_later_has_a_patience_of_its_own(self, bed: Bed) -> None:
        """A file that is being exchanged is read again, also when the wait for an empty file is over."""
        clock = Clock()
        bed.patience = Patience(NEVER_S, clock)
        bed.podinfo.write_text("")
        bed.resolve(machine("net1"), deadline_s=0.0)
        clock.now += NEVER_S
        bed.podinfo.unlink()
        bed.podinfo.symlink_to("..data")
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(bed.resolve, machine("net1"), NEVER_S)
            wait_until(lambda: bed.patience.spent("bad-input") or clock.tick(), what="the call to miss the file")
            bed.podinfo.with_name("..data").write_text(json.dumps({"interfaces": [{"network": "net1", "mtu": 1400}]}))
            assert call.result(LONG_S)["net1"].mtu == 1400

    def test_a_claim_that_never_comes_is_waited_for_once(self, bed: Bed) -> None:
        """If the annotation has the path, a start waits once for a claim that is not mounted."""
        clock = Clock()
        bed.patience = Patience(NEVER_S, clock)
        vm = machine(VmNetwork("net1", claim=NetworkClaim("vhost", "port")), spec={"net1": {"path": "/var/run/ovsdpdk/a.sock"}})
        assert bed.resolve(vm, deadline_s=0.0)["net1"].origin == "annotation"
        clock.now += NEVER_S
        assert bed.resolve(vm, deadline_s=NEVER_S)["net1"].origin == "annotation"

    def test_a_file_that_stays_broken_is_bad_input_in_the_end(self, bed: Bed) -> None:
        """A file that stays broken is bad input, and does not count as absent."""
        bed.patience = Patience(0.2)
        bed.podinfo.write_text('{"interfaces": [')
        with pytest.raises(BadInput, match="network-info is not JSON"):
            bed.resolve(machine("net1"))

    def test_a_claims_file_that_comes_late_is_waited_for(self, bed: Bed) -> None:
        """The sidecar waits for the claim's file: a driver may write it after the container has started."""
        bed.patience = Patience(LONG_S)
        vm, found = machine(VmNetwork("net1", claim=NetworkClaim("vhost", "port"))), {}
        thread = threading.Thread(target=lambda: found.update(bed.resolve(vm)))
        thread.start()
        bed.claim("resourceclaimtemplates/vhost/port/d-metadata.json")
        thread.join(LONG_S)
        assert found["net1"].origin == "dra"


class TestFiles:
    """Only regular files are read, and of each no more than such a file can have."""

    def test_a_symbolic_link_is_followed(self, bed: Bed) -> None:
        """The kubelet's files are links into a directory that it exchanges, so links are followed."""
        data = bed.podinfo.with_name("..data")
        data.write_text(json.dumps({"interfaces": [{"network": "net1", "mtu": 1400}]}))
        bed.podinfo.symlink_to(data.name)
        assert bed.resolve(machine("net1"))["net1"].mtu == 1400

    def test_a_link_that_is_being_swapped_is_looked_at_again(self, bed: Bed) -> None:
        """The directory behind the link may vanish between two reads. The file does not count as absent then."""
        bed.patience = Patience(LONG_S)
        bed.podinfo.symlink_to("..data")
        found: dict[str, VmSocketSource] = {}
        thread = threading.Thread(target=lambda: found.update(bed.resolve(machine("net1"))))
        thread.start()
        bed.podinfo.with_name("..data").write_text(json.dumps({"interfaces": [{"network": "net1", "mtu": 1400}]}))
        thread.join(LONG_S)
        assert found["net1"].mtu == 1400

    def test_a_fifo_is_not_waited_on(self, bed: Bed) -> None:
        """A FIFO is refused, because it may stay empty for ever."""
        os.mkfifo(bed.podinfo)
        with pytest.raises(BadInput, match="not a regular file"):
            bed.resolve(machine("net1"))

    def test_a_directory_is_bad_input(self, bed: Bed) -> None:
        """A directory in place of the file, from a mount that went wrong, is named in the error."""
        bed.podinfo.mkdir()
        with pytest.raises(BadInput, match="network-info is not a regular file"):
            bed.resolve(machine("net1"))

    def test_a_huge_file_is_not_read_whole(self, bed: Bed) -> None:
        """A huge file is refused, because the sidecar has little memory."""
        with bed.podinfo.open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(BadInput, match="more than 1048576 bytes"):
            bed.resolve(machine("net1"))

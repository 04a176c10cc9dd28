"""Texts by others in the sidecar's container: network-info, DRA metadata, MAC addresses, socket paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubevirt.dra import Device, read_metadata
from kubevirt.interface_mac import read_mac
from kubevirt.network_info import NetworkInfoEntry, read_network_info
from kubevirt.sidecar_errors import BadInput, DefinitionRefused, KubevirtError
from kubevirt.taken_sockets import CLUSTER_ROOTS, OWNER_ROOTS, TakenSockets, canonical, check_path, collide

DATA = Path(__file__).parent / "data"
SOCKET = "/var/run/ovsdpdk/vhost/vhost-port/vhost.sock"
V1ALPHA1 = "metadata.resource.k8s.io/v1alpha1"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def changed(value: Any, draw: Any) -> Any:
    """`value` with one part, chosen at random at any depth, replaced by anything."""
    if not value or not isinstance(value, dict | list) or draw(st.integers(0, 3)) == 0:
        return draw(JSON)
    if isinstance(value, list):
        index = draw(st.integers(0, len(value) - 1))
        return [changed(each, draw) if number == index else each for number, each in enumerate(value)]
    key = draw(st.sampled_from(sorted(value)))
    return {name: changed(each, draw) if name == key else each for name, each in value.items()}


def info(**entry: Any) -> dict[str, NetworkInfoEntry] | None:
    """A network-info file with one entry."""
    return read_network_info(json.dumps({"interfaces": [{"network": "net1", **entry}]}))


def metadata(*devices: dict[str, Any], version: str = V1ALPHA1, request: str = "vhost-port") -> str:
    return json.dumps({"apiVersion": version, "requests": [{"name": request, "devices": list(devices)}]})


def port(path: Any = SOCKET, **more: Any) -> dict[str, Any]:
    """A device with the attribute that makes it a vhost-user port."""
    return {"driver": "d", "attributes": {"vhost-user-path": {"string": path}, **more}}


class TestNetworkInfo:
    """The file that virt-controller and the kubelet write."""

    @pytest.mark.parametrize("case", json.loads((DATA / "network-status-network-info.json").read_text()).values())
    def test_what_kubevirt_generates_is_read(self, case: dict[str, str]) -> None:
        """Each network-info of KubeVirt's own tests is read. A PCI device has no socket."""
        found = read_network_info(case.get("kubevirt.io/network-info", ""))
        for attached in (found or {}).values():
            assert (attached.device, attached.path) == ("pci", "")
        macs = {name: attached.mac for name, attached in (found or {}).items()}
        assert macs in ({"foo": ""}, {"woo": "3a:17:d7:e5:0f:08"}, {"doo": ""}, {})

    def test_device_info_of_the_specification_gives_path_and_role(self) -> None:
        """The specification's vhost-user device-info describes the container's side: path and QEMU's role."""
        device = json.loads((DATA / "device-info-vhost-user.json").read_text())
        assert info(deviceInfo=device, mac="02:00:00:00:00:01", mtu=9000) == {
            "net1": NetworkInfoEntry("vhost-user", "/var/run/vhost.sock", "server", "02:00:00:00:00:01", 9000)
        }

    def test_an_empty_file_is_not_an_answer(self) -> None:
        """An empty file is distinguished from one without entries."""
        assert read_network_info(b"") is None
        assert read_network_info("\n") is None
        assert read_network_info("{}") == {}

    def test_absent_null_and_zero_are_nothing_told(self) -> None:
        """Missing, null and zero values count as absent: Go omits zero values, and older writers do not."""
        assert info() == info(deviceInfo=None, mac=None, mtu=None) == info(mac="", mtu=0) == {"net1": NetworkInfoEntry()}

    def test_unknown_keys_are_left_alone(self) -> None:
        """Unknown keys, as a newer KubeVirt may write, are ignored."""
        assert read_network_info('{"interfaces": [{"network": "n", "speed": 9}], "version": 2}') == {"n": NetworkInfoEntry()}

    def test_blanks_around_a_mac_do_not_matter(self) -> None:
        """Blanks around a MAC, as in the specification's own sample, are accepted."""
        found = info(mac=" 64:1F:74:32:2e:6d")
        assert found is not None
        assert found["net1"].mac == "64:1f:74:32:2e:6d"

    @pytest.mark.parametrize(
        ("entry", "part"),
        [
            ({"deviceInfo": {"type": "vhost-user"}}, "no path"),
            ({"deviceInfo": {"type": "vhost-user", "vhost-user": {"path": "/a", "mode": "both"}}}, "'both'"),
            ({"deviceInfo": "vhost-user"}, "deviceInfo is a string"),
            ({"mtu": 67}, "mtu is 67"),
            ({"mtu": "9000"}, "mtu is a string"),
            ({"mac": "01:00:5e:00:00:01"}, "unicast"),
            ({"mac": "02:00:00:00:00"}, "six octets"),
            ({"network": ""}, "no network"),
        ],
    )
    def test_what_is_wrong_is_named_by_its_place(self, entry: dict[str, Any], part: str) -> None:
        """The message has the place in the file, and what is wrong there."""
        with pytest.raises(BadInput) as caught:
            info(**entry)
        assert "interfaces[0]" in caught.value.message
        assert part in caught.value.message

    def test_two_entries_of_one_network_are_refused(self) -> None:
        """Two entries of one network are refused: which of them is right is unknown."""
        with pytest.raises(BadInput, match="second time"):
            read_network_info('{"interfaces": [{"network": "a"}, {"network": "a"}]}')

    @given(st.data())
    def test_anything_gives_facts_or_a_named_error(self, data: st.DataObject) -> None:
        """Whatever value is in any place of the file, only a KubevirtError is raised."""
        device = {"type": "vhost-user", "vhost-user": {"path": "/a", "mode": "server"}}
        whole = {"interfaces": [{"network": "a", "deviceInfo": device, "mac": "02:00:00:00:00:01", "mtu": 1500}]}
        try:
            read_network_info(json.dumps(changed(whole, data.draw)))
        except KubevirtError:
            return

    @given(st.binary(max_size=40))
    def test_any_bytes_give_facts_or_a_named_error(self, raw: bytes) -> None:
        """Files that are not JSON raise only a KubevirtError, too."""
        for read in (read_network_info, lambda text: read_metadata(text, "", "file")):
            try:
                read(raw)
            except KubevirtError:
                continue


class TestMetadata:
    """The metadata file of a DRA driver."""

    def test_the_first_known_version_of_a_stream_is_read(self) -> None:
        """A file has the same object in several versions; unknown ones before a known one are skipped."""
        text = (DATA / "dra-metadata.json").read_text()
        expected = Device(SOCKET, 1500, "", "ovsdpdk.k8snetworkplumbingwg.io")
        assert read_metadata(text, "vhost-port", "file") == expected
        future = json.dumps({"apiVersion": "metadata.resource.k8s.io/v9", "requests": "of another form"})
        assert read_metadata(future + text, "vhost-port", "file") == expected

    def test_only_unknown_versions_are_refused_by_name(self) -> None:
        """The message names the versions in the file, and those that are read."""
        with pytest.raises(BadInput, match=r"v1alpha1.*it has: metadata\.resource\.k8s\.io/v9"):
            read_metadata(metadata(port(), version="metadata.resource.k8s.io/v9"), "vhost-port", "file")

    @pytest.mark.parametrize(
        "attributes",
        [
            {"vhost-user-path": {"string": SOCKET}, "mtu": {"int": 9000}},
            {"ovsdpdk.k8snetworkplumbingwg.io/vhost-user-path": {"string": SOCKET}, "d/mtu": {"int": 9000}},
            {"vhost-user-path": SOCKET, "mtu": 9000},
            {"vhost-user-path": {"string": SOCKET, "version": "1"}, "mtu": {"int": 9000}, "other/mtu": {"int": 1}},
        ],
    )
    def test_attributes_may_be_qualified_and_unwrapped(self, attributes: dict[str, Any]) -> None:
        """Attributes may have the driver's domain or none; without one they are the driver's own, and count first."""
        assert read_metadata(metadata({"attributes": attributes}), "vhost-port", "file") == Device(SOCKET, 9000)

    def test_mtu_and_mac_are_optional(self) -> None:
        """One released driver gives no MTU. Network data has a MAC only if the driver gives one."""
        assert read_metadata(metadata(port()), "vhost-port", "file") == Device(SOCKET, None, "", "d")
        with_mac = {**port(), "networkData": {"hardwareAddress": "02:00:00:00:00:0A", "ips": ["192.0.2.1/24"]}}
        assert read_metadata(metadata(with_mac), "vhost-port", "file") == Device(SOCKET, None, "02:00:00:00:00:0a", "d")

    def test_only_the_request_counts(self) -> None:
        """Devices of other requests are ignored. An allocated alternative belongs to its request."""
        assert read_metadata(metadata(port()), "other", "file") is None
        assert read_metadata(metadata(port(), request="vhost-port/fast"), "vhost-port", "file") is not None
        assert read_metadata(metadata(port()), "", "file") is not None

    def test_a_device_without_a_socket_is_no_port(self) -> None:
        """A claim may have other devices, such as a GPU."""
        gpu = {"attributes": {"model": {"string": "x"}}}
        assert read_metadata(metadata(gpu), "vhost-port", "file") is None
        assert read_metadata(metadata(gpu, port()), "vhost-port", "file") == Device(SOCKET, None, "", "d")

    @pytest.mark.parametrize(
        ("devices", "part"),
        [
            ([port(), port("/var/run/ovsdpdk/b.sock")], "several devices"),
            ([port(5)], "vhost-user-path is a whole number"),
            ([port(mtu={"string": "1500"})], "mtu is null"),
            ([port(mtu={"int": 20})], "from 68"),
            ([{"attributes": {"a/vhost-user-path": "/a", "b/vhost-user-path": "/b"}}], "differ"),
        ],
    )
    def test_what_is_wrong_is_named(self, devices: list[dict[str, Any]], part: str) -> None:
        """The message has the file's name, and what is wrong in it."""
        with pytest.raises(BadInput) as caught:
            read_metadata(metadata(*devices), "vhost-port", "/claims/metadata.json")
        assert part in caught.value.message
        assert "/claims/metadata.json" in caught.value.message

    @given(st.data())
    def test_anything_gives_a_port_or_a_named_error(self, data: st.DataObject) -> None:
        """Whatever value a driver writes in any place, only a KubevirtError is raised."""
        whole = json.loads(metadata({**port(mtu={"int": 1500}), "networkData": {"hardwareAddress": "02:00:00:00:00:01"}}))
        try:
            read_metadata(json.dumps(changed(whole, data.draw)), "vhost-port", "file")
        except KubevirtError:
            return


class TestMac:
    """MAC addresses in the one form in which they are compared."""

    def test_forms_that_kubevirt_takes_become_one(self) -> None:
        """Addresses with capitals or dashes are brought to one form."""
        for written in ("DE-AD-00-00-BE-AF", " de:ad:00:00:be:af ", "dead.0000.BEAF"):
            assert read_mac(written, "x", "y") == "de:ad:00:00:be:af"
        assert read_mac("", "x", "y") == ""

    @pytest.mark.parametrize(
        "text",
        [
            "01:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "02:00:00-00:00:01",
            "0:0:0:0:0:1",
            "\u06602:00:00:00:00:01",
        ],
    )
    def test_what_no_interface_can_have_is_refused(self, text: str) -> None:
        """Group addresses, empty ones, and texts that are no address are refused."""
        with pytest.raises(BadInput, match="interface x"):
            read_mac(text, "interface x", "y")


class TestPaths:
    """Where a socket may lie."""

    @pytest.mark.parametrize("path", [SOCKET, "/run/ovsdpdk/a.sock", "/var/run/kubevirt/vhostuser/pod1.sock"])
    def test_the_known_places_are_allowed_to_everybody(self, path: str) -> None:
        """The directories of drivers, device plugins and our own plugin are allowed for every VM."""
        check_path(path, OWNER_ROOTS, "annotation")
        check_path(path, CLUSTER_ROOTS, "driver")

    def test_the_cluster_may_have_places_of_its_own(self) -> None:
        """The administrator may choose a driver's directory. The VM's owner may not."""
        check_path("/var/run/grout/vhu/vhost.sock", CLUSTER_ROOTS, "driver")
        with pytest.raises(DefinitionRefused, match="path-not-allowed"):
            check_path("/var/run/grout/vhu/vhost.sock", OWNER_ROOTS, "annotation")

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "vhost.sock",
            "//var/run/kubevirt/a.sock",
            "/var/run/kubevirt/../kubevirt-hooks/a.sock",
            "/var/run/kubevirt/./a.sock",
            "/var/run/kubevirt/a/",
            "/var/run/kubevirt",
            "/var/run/kubevirt/sockets/launcher-sock",
            "/var/run/kubevirt/sockets",
            "/run/kubevirt-hooks/a.sock",
            "/var/run/libvirt/virtqemud-sock",
            "/etc/passwd",
            "/dev/vhost-net",
            "/var/run/kubevirt/a\n.sock",
            "/var/run/kubevirt/a b.sock",
            "/var/run/kubevirt/a,server=off",
            "/var/run/kubevirt/ä.sock",
            "/var/run/kubevirt/\udc80.sock",
        ],
    )
    @pytest.mark.parametrize("roots", [OWNER_ROOTS, CLUSTER_ROOTS])
    def test_other_places_are_refused(self, path: str, roots: tuple[str, ...]) -> None:
        """KubeVirt's own sockets, paths with dots, other forms, and what QEMU's option parser would split are refused."""
        with pytest.raises(DefinitionRefused) as caught:
            check_path(path, roots, "annotation userspace/vhostuser")
        assert caught.value.name == "path-not-allowed"
        assert "annotation userspace/vhostuser" in str(caught.value)
        str(caught.value).encode()

    def test_a_path_has_at_most_107_bytes(self) -> None:
        """A path with one byte more than sun_path holds is refused before QEMU would refuse it."""
        longest = "/var/run/kubevirt/" + "x" * (107 - 18)
        check_path(longest, OWNER_ROOTS, "annotation")
        with pytest.raises(DefinitionRefused) as caught:
            check_path(longest + "x", OWNER_ROOTS, "annotation")
        assert caught.value.name == "path-too-long"

    def test_run_and_var_run_are_one_directory(self) -> None:
        """Two paths to one socket, below /run and /var/run, are recognised as one."""
        assert canonical("/run/kubevirt/a") == canonical("/var/run/kubevirt/a")

    @given(st.text(max_size=130))
    def test_any_text_is_a_path_or_refused(self, text: str) -> None:
        """Any text raises nothing but a KubevirtError."""
        try:
            check_path(f"/var/run/{text}", CLUSTER_ROOTS, "driver")
        except KubevirtError:
            return
        assert ".." not in text.split("/")


@given(st.lists(st.lists(st.sampled_from(["a", "b", "", "c"]), min_size=1, max_size=4), max_size=8))
def test_the_first_socket_that_collides(parts: list[list[str]]) -> None:
    """A socket collides with the first one that has its path, or whose path is a directory of its own, or the other way round."""
    paths = ["/var/run/" + "/".join(each) for each in parts]
    taken: TakenSockets[int] = TakenSockets()
    for number, path in enumerate(paths):
        expected = next((other for other, known in enumerate(paths[:number]) if collide(known, path)), None)
        assert taken.take(path, number) == expected


def test_a_path_too_long_for_a_socket() -> None:
    """A path that is too long collides with none: it is refused for its length."""
    taken: TakenSockets[int] = TakenSockets()
    assert [taken.take("/a" * 60, number) for number in range(2)] == [None, None]

"""vhost-user interfaces in definitions: what is written and corrected, memory, MTU, and what is refused."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kubevirt.domain import Policy, mutate
from kubevirt.kubevirt_traps import TRAPS
from kubevirt.sidecar_errors import BadInput, DefinitionRefused, KubevirtError
from kubevirt.vmi import VmInterface
from tests.unit.kubevirt.domains import (
    PLAIN,
    QEMU,
    backing,
    interfaces,
    mutated,
    ours,
    source,
    sources,
    vm,
    with_device,
    with_memory,
)

VIRTIOFS = """\
<memoryBacking><source type="memfd"></source><access mode="shared"></access></memoryBacking>
  <!-- virtiofs -->"""
PASST = """\
<interface type="vhostuser">
      <source dev="eth0"></source>
      <model type="virtio-non-transitional"></model>
      <alias name="ua-default"></alias>
      <backend type="passt" logFile="/var/run/kubevirt/passt.log"></backend>
      <portForward proto="tcp"><range start="22"></range></portForward>
    </interface>"""
VHOST_DISK = """\
<disk type="vhostuser" device="disk" model="virtio-non-transitional">
      <source type="unix" path="/var/run/spdk/vhost.0"><reconnect enabled="yes" timeout="10"></reconnect></source>
      <target dev="vda" bus="virtio"></target>
    </disk>"""
LIVE = """\
<interface type='vhostuser'>
      <mac address='02:00:00:00:00:01'/>
      <source type='unix' path='/var/run/kubevirt/vhostuser/net1.sock' mode='server'/>
      <target dev=''/>
      <model type='virtio-non-transitional'/>
      <driver name='vhost' rx_queue_size='1024'/>
      <alias name='ua-net1'/>
      <rom enabled='no'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </interface>"""
"""A definition as libvirt returns it after queues='1': it added the address and the target."""
SHARED = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"


def refused(domain: str = PLAIN, **more: Any) -> KubevirtError:
    """Why a definition is refused. `interface` and `source` change those of net1, `policy` is the MTU's, the rest is the VM's."""
    interface = VmInterface("net1", "vhostuser", **more.pop("interface", {}))
    found = {"net1": source(**more.pop("source", {}))}
    policy = more.pop("policy", Policy())
    with pytest.raises(KubevirtError) as error:
        mutate(domain, vm(interface, **more), found, policy)
    assert error.value.name in TRAPS
    assert "ns/vm" not in error.value.message
    return error.value


def live(domain: str = LIVE, memory: str = SHARED) -> str:
    """A definition with an interface of ours and shared memory."""
    return with_device(domain).replace("</memory>\n", f"</memory>\n  {memory}\n")


def test_an_interface_has_what_libvirt_and_kubevirt_need() -> None:
    """The interface has MAC, unix socket with QEMU as server, KubeVirt's model and alias, no boot ROM, and nothing unasked."""
    assert ours(mutated(PLAIN)) == {
        "mac": {"address": "02:00:00:00:00:01"},
        "source": {"type": "unix", "path": "/var/run/kubevirt/vhostuser/net1.sock", "mode": "server"},
        "model": {"type": "virtio-non-transitional"},
        "driver": {"name": "vhost"},
        "alias": {"name": "ua-net1"},
        "rom": {"enabled": "no"},
    }


@pytest.mark.parametrize(
    ("interface", "child", "attributes"),
    [
        ({"model": "virtio"}, "model", {"type": "virtio-non-transitional"}),
        ({"model": "virtio-transitional"}, "model", {"type": "virtio-transitional"}),
        (
            {"pci_address": "0000:0A:1f.7"},
            "address",
            {"type": "pci", "domain": "0x0000", "bus": "0x0a", "slot": "0x1f", "function": "0x7"},
        ),
        ({"acpi_index": 7}, "acpi", {"index": "7"}),
        ({"boot_order": 2}, "boot", {"order": "2"}),
        ({"state": "down"}, "link", {"state": "down"}),
        ({"acpi_index": 0}, "acpi", None),
        ({"state": "up"}, "link", None),
        ({"boot_order": 2}, "rom", None),
    ],
)
def test_what_the_vm_says_of_its_interface_is_written(
    interface: dict[str, Any], child: str, attributes: dict[str, str] | None
) -> None:
    """Each field of the VM's interface becomes its element. A field that is left out becomes none."""
    machine = vm(VmInterface("net1", "vhostuser", **interface))
    assert ours(mutated(PLAIN, machine)).get(child) == attributes


@pytest.mark.parametrize(
    ("found", "driver"),
    [
        ({"queues": 2}, {"queues": "2"}),
        ({"queues": 1}, {}),
        (
            {"queues": 4, "rx_queue_size": 256, "tx_queue_size": 1024},
            {"queues": "4", "rx_queue_size": "256", "tx_queue_size": "1024"},
        ),
    ],
)
def test_queues_and_rings_that_are_asked_for(found: dict[str, Any], driver: dict[str, str]) -> None:
    """Queues and ring sizes are the source's. A single queue is never written, because libvirt drops it."""
    assert ours(mutated(PLAIN, found={"net1": source(**found)}))["driver"] == {"name": "vhost", **driver}


@pytest.mark.parametrize(
    ("vcpu", "queues"),
    [
        ("<vcpu>1</vcpu>", None),
        ("<vcpu placement='static'> 8 <!-- of 8 --></vcpu>", "8"),
        ("<vcpu current='2'>8</vcpu>", "2"),
        (
            "<vcpu>8</vcpu><vcpus>"
            + "".join(f"<vcpu id='{n}' enabled='{'yes' if n < 3 else 'no'}'/>" for n in range(8))
            + "</vcpus>",
            "3",
        ),
        ("<vcpu>710</vcpu>", "128"),
        ("", "6"),
    ],
)
def test_multiqueue_gives_a_queue_for_each_vcpu(vcpu: str, queues: str | None) -> None:
    """As by KubeVirt's rule, the vCPUs at the start count, not those that can be plugged in, up to what a DPDK port takes."""
    domain = PLAIN.replace('<vcpu placement="static">4</vcpu>', vcpu)
    assert ours(mutated(domain, vm(multiqueue=True, vcpus=6)))["driver"].get("queues") == queues


def test_queues_that_are_asked_for_beat_multiqueue() -> None:
    """The annotation's queues count more than multiqueue. vCPUs that are plugged in may use them."""
    domain = PLAIN.replace('">4<', '" current="1">4<')
    assert ours(mutated(domain, vm(multiqueue=True), {"net1": source(queues=3)}))["driver"]["queues"] == "3"


def test_a_client_has_nothing_of_a_server() -> None:
    """When the switch is the server, QEMU connects. Nothing else differs."""
    assert ours(mutated(PLAIN, found={"net1": source(mode="client")}))["source"]["mode"] == "client"


def test_transitional_machines_have_transitional_interfaces() -> None:
    """Guests older than virtio 1.0 get a transitional interface."""
    assert ours(mutated(PLAIN, vm(transitional=True)))["model"] == {"type": "virtio-transitional"}


def test_encrypted_memory_needs_the_iommu_and_no_rom() -> None:
    """With launchSecurity the interface gets what KubeVirt gives its own interfaces: the IOMMU, and no ROM."""
    domain = with_memory('<launchSecurity type="sev"><policy>0x0003</policy></launchSecurity>')
    found = ours(mutated(domain, vm(VmInterface("net1", "vhostuser", boot_order=1))))
    assert found["driver"] == {"name": "vhost", "iommu": "on"}
    assert found["rom"] == {"enabled": "no"}


def test_a_mac_is_written_as_libvirt_writes_it() -> None:
    """Dashes and capitals, which Kubernetes accepts, become libvirt's form."""
    assert ours(mutated(PLAIN, found={"net1": source(mac="02-00-00-00-00-AB")}))["mac"] == {"address": "02:00:00:00:00:ab"}


def test_values_can_not_become_markup() -> None:
    """A path with quotes and angle brackets stays a path."""
    path = "/run/a'b\"<interface/>&amp;"
    assert ours(mutated(PLAIN, found={"net1": source(path=path)}))["source"]["path"] == path


def test_interfaces_come_in_the_vms_order_behind_all_others() -> None:
    """Guests number their NICs by this order. Other interfaces keep their places."""
    machine = vm(VmInterface("net2", "vhostuser"), VmInterface("default"), VmInterface("net1", "vhostuser"))
    domain = with_device(f"{PASST}\n    {VHOST_DISK}")
    after = mutated(domain, machine, {name: source(name) for name in ("net1", "net2")})
    assert [each.findall("alias")[0].get("name") for each in interfaces(after)] == ["ua-default", "ua-net2", "ua-net1"]
    devices = ET.fromstring(after).find("devices")
    assert devices is not None
    assert devices[-1].tag == "disk"


@pytest.mark.parametrize("first", ["net1", "net2", "net3"])
def test_a_missing_one_takes_its_place_among_those_that_are_there(first: str) -> None:
    """A missing interface takes its place in the VM's order, also when an earlier run knew fewer sources."""
    machine = vm(*(VmInterface(f"net{number}", "vhostuser") for number in (1, 2, 3)))
    found = sources(machine)
    once = mutated(PLAIN, machine, {first: found[first]})
    assert mutated(once, machine, found) == mutated(PLAIN, machine, found)


def test_a_missing_one_follows_the_one_before_it() -> None:
    """A missing interface follows the one before it, also when another sidecar's interface stands behind that."""
    machine = vm(VmInterface("net1", "vhostuser"), VmInterface("net2", "vhostuser"))
    domain = mutated(with_device('<interface type="ethernet"/>'), machine, {"net1": source()})
    domain = domain.replace('<interface type="ethernet"/>', "").replace(
        "  </devices>", '    <interface type="ethernet"/>\n  </devices>'
    )
    assert [each.get("type") for each in interfaces(mutated(domain, machine))] == ["vhostuser", "vhostuser", "ethernet"]


def test_the_longest_path_is_taken() -> None:
    """A path of 107 bytes, the most that a unix socket can have, is accepted."""
    path = "/" + "a" * 106
    assert ours(mutated(PLAIN, found={"net1": source(path=path)}))["source"]["path"] == path


def test_other_interfaces_and_vhost_user_devices_are_left_alone() -> None:
    """passt's interface and some disks are vhost-user, too: no byte of them changes."""
    after = mutated(with_device(f"{PASST}\n    {VHOST_DISK}"))
    assert PASST in after
    assert VHOST_DISK in after
    assert len(interfaces(after)) == 2


def test_without_sources_a_definition_comes_back_unread() -> None:
    """A VM without interfaces of ours is returned unchanged, whatever its definition has."""
    for domain in (PLAIN, "<domain", "<!DOCTYPE x><x/>"):
        assert mutate(domain, vm(), {}) == domain


def test_an_absent_interface_is_left_out() -> None:
    """An interface with `state: absent`, an unplugged NIC, is not written."""
    machine = vm(VmInterface("net1", "vhostuser", state="absent"))
    assert mutate(PLAIN, machine, {"net1": source()}) == PLAIN


# what is there already


def test_what_libvirt_rewrote_is_ours_still() -> None:
    """Live XML has an address, an empty target and no queues='1'. Nothing is written again."""
    domain = live()
    assert mutated(domain, found={"net1": source(queues=1, rx_queue_size=1024)}) == domain


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("02:00:00:00:00:01", "02:00:00:00:00:99"),
        ("net1.sock", "other.sock"),
        ("mode='server'", "mode='client'"),
        ("virtio-non-transitional", "virtio"),
        ("rx_queue_size='1024'", "rx_queue_size='256'"),
        ("<alias name='ua-net1'/>", "<alias name='ua-net1'/><link state='down'/>"),
    ],
)
def test_only_what_differs_is_corrected(old: str, new: str) -> None:
    """One attribute is set to what it must be. Every other byte of the interface stays."""
    found = {"net1": source(rx_queue_size=1024)}
    expected = live(LIVE.replace(old, new.replace("down", "up")) if "link" in new else LIVE)
    assert mutated(live(LIVE.replace(old, new)), found=found) == expected


def test_what_is_missing_is_added_and_what_is_unknown_kept() -> None:
    """Another sidecar's tuning, comments and unknown elements stay."""
    odd = LIVE.replace("<target dev=''/>", "<!-- c --><coalesce><rx/></coalesce>").replace(
        "rx_queue_size='1024'", "txmode='timer'"
    )
    machine = vm(VmInterface("net1", "vhostuser", acpi_index=5))
    after = mutated(live(odd), machine, {"net1": source(queues=2)})
    assert "<!-- c --><coalesce><rx/></coalesce>" in after
    assert ours(after)["driver"] == {"name": "vhost", "txmode": "timer", "queues": "2"}
    assert ours(after)["acpi"] == {"index": "5"}


def test_a_stripped_interface_is_made_whole() -> None:
    """When another sidecar wrote our interface anew from KubeVirt's model, it lost its path. It gets the path again."""
    lossy = '<interface type="vhostuser"><source></source><model type="virtio"></model><alias name="ua-net1"></alias></interface>'
    after = ours(mutated(live(lossy), found={"net1": source(queues=2)}))
    assert after["source"] == {"type": "unix", "path": "/var/run/kubevirt/vhostuser/net1.sock", "mode": "server"}
    assert after["mac"] == {"address": "02:00:00:00:00:01"}
    assert after["driver"] == {"name": "vhost", "queues": "2"}


def test_a_self_closing_interface_without_alias_is_not_ours() -> None:
    """An interface without our alias is not ours."""
    after = mutated(live("<interface type='vhostuser'/>"))
    assert "<interface type='vhostuser'/>" in after
    assert len(interfaces(after)) == 2


def test_a_listening_socket_does_not_reconnect() -> None:
    """libvirt refuses `<reconnect>` in server mode, so one that is left of client mode is removed."""
    client = LIVE.replace("mode='server'/>", "mode='client'>\n        <reconnect enabled='yes' timeout='1'/>\n      </source>")
    assert "reconnect" not in mutated(live(client))
    assert "reconnect" in mutated(live(client), found={"net1": source(mode="client")})


def test_a_mac_is_compared_whatever_its_case() -> None:
    """MACs that differ only in capitals are equal."""
    domain = live(LIVE.replace("02:00:00:00:00:01", "02:00:00:00:00:AB"))
    assert mutated(domain, found={"net1": source(mac="02:00:00:00:00:ab")}) == domain


def test_an_address_is_compared_as_a_number() -> None:
    """The slots 0x1 and 0x01 are equal."""
    machine = vm(VmInterface("net1", "vhostuser", pci_address="0000:01:00.0"))
    domain = live(LIVE.replace("bus='0x01' slot='0x00'", "bus='1' slot='0x0'"))
    assert mutated(domain, machine) == domain


def test_an_address_that_is_asked_for_replaces_another() -> None:
    """The address in the VM's spec replaces the one that libvirt chose."""
    machine = vm(VmInterface("net1", "vhostuser", pci_address="0000:05:00.0"))
    assert ours(mutated(live(), machine))["address"]["bus"] == "0x05"


@pytest.mark.parametrize(
    "device",
    [
        '<interface type="ethernet"><alias name="ua-net1"/></interface>',
        '<interface type="bridge"><alias name="ua-net1"/></interface>',
        PASST.replace("ua-default", "ua-net1"),
        '<disk type="file"><alias name="ua-net1"/></disk>',
        LIVE + LIVE,
    ],
)
def test_an_alias_that_is_anothers_is_refused(device: str) -> None:
    """Two devices with one alias are refused, and another's interface is not changed into ours."""
    error = refused(live(device))
    assert (type(error), error.name) == (DefinitionRefused, "foreign-interface")
    assert "net1" in error.message
    if "ethernet" in device:
        assert "domainAttachmentType" in error.remedy


# memory


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", {"source": {"type": "memfd"}, "access": {"mode": "shared"}}),
        ("<memoryBacking/>", {"source": {"type": "memfd"}, "access": {"mode": "shared"}}),
        ("<memoryBacking></memoryBacking>", {"source": {"type": "memfd"}, "access": {"mode": "shared"}}),
        ("<memoryBacking> <!-- c --> </memoryBacking>", {"source": {"type": "memfd"}, "access": {"mode": "shared"}}),
        ("<memoryBacking><locked/></memoryBacking>", {"locked": {}, "source": {"type": "memfd"}, "access": {"mode": "shared"}}),
        (
            "<memoryBacking><hugepages/><source type='memfd'/></memoryBacking>",
            {"hugepages": {}, "source": {"type": "memfd"}, "access": {"mode": "shared"}},
        ),
        ("<memoryBacking><hugepages/></memoryBacking>", {"hugepages": {}, "access": {"mode": "shared"}}),
        ("<memoryBacking><hugepages/><access mode='private'/></memoryBacking>", {"hugepages": {}, "access": {"mode": "shared"}}),
        ("<memoryBacking><access mode='private'/></memoryBacking>", {"access": {"mode": "shared"}, "source": {"type": "memfd"}}),
        ("<memoryBacking><access/></memoryBacking>", {"access": {"mode": "shared"}, "source": {"type": "memfd"}}),
        (
            "<memoryBacking><source type='anonymous'/></memoryBacking>",
            {"source": {"type": "memfd"}, "access": {"mode": "shared"}},
        ),
        ("<memoryBacking><source/></memoryBacking>", {"source": {"type": "memfd"}, "access": {"mode": "shared"}}),
        ("<memoryBacking><source type='file'/></memoryBacking>", {"source": {"type": "file"}, "access": {"mode": "shared"}}),
    ],
)
def test_memory_is_shared_whatever_it_was(before: str, after: dict[str, dict[str, str]]) -> None:
    """Memory gets shared access. Its source is memfd unless it is hugepages or a file."""
    assert backing(mutated(with_memory(before))) == after


def test_memory_that_is_shared_already_stays_as_it_is() -> None:
    """With virtiofs KubeVirt itself shares the memory. That is not changed."""
    assert VIRTIOFS in mutated(with_memory(VIRTIOFS))


def test_memory_backing_has_a_place_in_any_definition() -> None:
    """memoryBacking is put behind the memory's size, or at the beginning if there is none."""
    assert (
        "</memory>\n  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n  <vcpu"
        in mutated(PLAIN)
    )
    assert "</currentMemory>\n  <memoryBacking>" in mutated(with_memory("<currentMemory>1</currentMemory>"))
    bare = mutated("<domain><devices/></domain>")
    assert bare.startswith(
        "<domain><memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking><devices><interface"
    )


@pytest.mark.parametrize(
    ("domain", "named"),
    [
        (with_memory("<cpu><numa><cell id='0'/><cell id='7' memAccess='private'/></numa></cpu>"), "cell 7"),
        (with_memory("<cpu><numa><cell memAccess='private'/></numa></cpu>"), "cell 0"),
        (with_device("<memory model='dimm' access='private'/>"), "dimm"),
    ],
)
def test_memory_that_is_private_on_purpose_is_refused(domain: str, named: str) -> None:
    """Memory that is explicitly private is refused by name, not changed."""
    error = refused(domain)
    assert (error.name, named in error.message) == ("private-memory", True)


def test_a_shared_numa_cell_is_kept() -> None:
    """A NUMA cell that is shared has the value that we need, and stays."""
    cell = "<cpu><numa><cell id='0' memAccess='shared'/></numa></cpu>"
    assert cell in mutated(with_memory(cell))


# MTU


@pytest.mark.parametrize(
    ("policy", "size"),
    [
        (Policy(), None),
        (Policy("off", (12, 8)), None),
        (Policy("element"), "9000"),
        (Policy("element", (11, 10, 0)), "9000"),
        (Policy("auto"), None),
        (Policy("auto", (11, 3, 0)), None),
        (Policy("auto", (12, 7, 9)), None),
        (Policy("auto", (12, 8)), "9000"),
        (Policy("auto", (13, 0, 0)), "9000"),
        (Policy("override"), None),
    ],
)
def test_an_mtu_element_is_written_by_policy(policy: Policy, size: str | None) -> None:
    """The element is written if libvirt is known to accept it, or if the operator asks for it."""
    after = ours(mutated(PLAIN, found={"net1": source(mtu=9000)}, policy=policy))
    assert after.get("mtu") == (None if size is None else {"size": size})


@pytest.mark.parametrize("mtu", ["element", "override"])
def test_an_unknown_mtu_is_not_written(mtu: Any) -> None:
    """Without a known MTU no element is written."""
    assert mutated(PLAIN, policy=Policy(mtu)) == mutated(PLAIN)


def overridden(domain: str) -> list[dict[str, Any]]:
    """The properties of each override, by name, by its alias."""
    return [
        {
            "alias": device.get("alias"),
            **{each.get("name", ""): (each.get("type"), each.get("value")) for each in device.iter(f"{QEMU}property")},
        }
        for device in ET.fromstring(domain).iterfind(f"{QEMU}override/{QEMU}device")
    ]


@pytest.mark.parametrize(
    ("root", "override", "expected"),
    [
        ("", "", []),
        (' xmlns:qemu="{}"', "", []),
        (' xmlns:q="{}"', "", []),
        (' xmlns:qemu="urn:other"', "", []),
        (' xmlns:qemu="{}"', "<qemu:override/>", []),
        (' xmlns:qemu="{}"', '<qemu:override><qemu:device alias="ua-x"/></qemu:override>', [{"alias": "ua-x"}]),
        (
            ' xmlns:x="{}"',
            '<x:override><x:device alias="x"><x:frontend><x:property name="a" type="b"/></x:frontend></x:device></x:override>',
            [{"alias": "x", "a": ("b", None)}],
        ),
        ("", '<override xmlns="{}"><device alias="ua-x"/></override>', [{"alias": "ua-x"}]),
    ],
)
def test_an_mtu_override_is_merged(root: str, override: str, expected: list[dict[str, Any]]) -> None:
    """Our override joins those of others, under any prefix, or is the first."""
    namespace = QEMU[1:-1]
    domain = PLAIN.replace("<domain", "<domain" + root.format(namespace))
    domain = domain.replace("</domain>", f"{override.format(namespace)}</domain>")
    after = mutated(domain, found={"net1": source(mtu=9000)}, policy=Policy("override"))
    assert overridden(after) == [*expected, {"alias": "ua-net1", "host_mtu": ("unsigned", "9000")}]
    assert root.format(namespace) in after


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("<q:device alias='ua-net1'/>", {}),
        ("<q:device alias='ua-net1'><q:frontend/></q:device>", {}),
        (
            "<q:device alias='ua-net1'><q:frontend><q:property name='rss' type='bool' value='on'/></q:frontend></q:device>",
            {"rss": ("bool", "on")},
        ),
        (
            "<q:device alias='ua-net1'><q:frontend><q:property name='host_mtu' type='string' value='1'/></q:frontend></q:device>",
            {},
        ),
    ],
)
def test_an_mtu_joins_overrides_of_the_same_device(device: str, expected: dict[str, Any]) -> None:
    """A device has one list of overrides, and one MTU in it."""
    domain = PLAIN.replace("<domain", f"<domain xmlns:q='{QEMU[1:-1]}'").replace(
        "</domain>", f"<q:override>{device}</q:override></domain>"
    )
    after = mutated(domain, found={"net1": source(mtu=9000)}, policy=Policy("override"))
    assert overridden(after) == [{"alias": "ua-net1", **expected, "host_mtu": ("unsigned", "9000")}]


# what is refused


@pytest.mark.parametrize(
    ("more", "name", "told"),
    [
        ({"interface": {"model": "e1000"}}, "wrong-model", "e1000"),
        ({"source": {"path": "/" + "a" * 107}}, "path-too-long", "108"),
        ({"source": {"path": "/" + "é" * 54}}, "path-too-long", "109"),
        ({"source": {"queues": 5}}, "queues-over-vcpus", "4 vCPUs"),
        ({"source": {"queues": 129}, "domain": PLAIN.replace(">4<", ">200<")}, "queues-over-port", "128"),
        ({"source": {"rx_queue_size": 300}}, "ring-size", "rx_queue_size is 300"),
        ({"source": {"tx_queue_size": 2048}}, "ring-size", "tx_queue_size is 2048"),
        ({"source": {"rx_queue_size": 128}}, "ring-size", "128"),
        ({"source": {"mac": "01:00:5e:00:00:01"}}, "mac-mismatch", "multicast"),
        ({"source": {"mac": "00:00:00:00:00:00"}}, "mac-mismatch", "all zero"),
        ({"policy": Policy("element", (11, 3, 0))}, "mtu-element", "11.3.0"),
        ({"policy": Policy("element", (9, 0, 0))}, "mtu-element", "9.0.0"),
        (
            {
                "interface": {"pci_address": "0000:00:02.0"},
                "domain": with_device("<disk><alias name='ua-d'/><address type='pci' bus='0' slot='0x02'/></disk>"),
            },
            "pci-address",
            "a <disk> (ua-d)",
        ),
    ],
)
def test_what_could_not_work_is_refused_by_name(more: dict[str, Any], name: str, told: str) -> None:
    """The refusal comes before the VM starts, and names network, trap and remedy."""
    error = refused(**more)
    assert (type(error), error.name) == (DefinitionRefused, name)
    assert told in error.message
    assert name == "mtu-element" or "network net1" in error.message
    assert error.remedy


@pytest.mark.parametrize(
    "more",
    [
        {"interface": {"pci_address": "00:02.0"}},
        {"interface": {"pci_address": "0000:00:02.8"}},
        {"interface": {"pci_address": "0000:00:20.0"}},
        {"interface": {"pci_address": "0000:00:ff.0"}},
        {"interface": {"pci_address": "0000:00:02.0\n"}},
        {"interface": {"boot_order": 0}},
        {"interface": {"acpi_index": -1}},
        {"interface": {"state": "sideways"}},
        {"source": {"mac": ""}},
        {"source": {"mac": "02:00:00:00:00"}},
        {"source": {"path": "relative.sock"}},
        {"source": {"path": ""}},
        {"source": {"path": "/a\0b"}},
        {"source": {"path": "/\ud800"}},
        {"source": {"queues": 0}},
        {"source": {"mtu": 67}, "policy": Policy("element")},
        {"source": {"mtu": 70_000}, "policy": Policy("override")},
        {"domain": "<domain/>"},
        {"domain": "<network><devices/></network>"},
        {"domain": "<domain xmlns='urn:other'><devices/></domain>"},
        {"domain": "<domain><devices/><devices/></domain>"},
        {"domain": with_memory("<memoryBacking/><memoryBacking/>")},
        {"domain": with_memory("<memoryBacking><access/><access/></memoryBacking>")},
        {"domain": live(LIVE.replace("<target dev=''/>", "<model type='virtio'/>"))},
        {"domain": PLAIN.replace(">4<", ">four<")},
        {"domain": PLAIN.replace(">4<", "><")},
    ],
    ids=str,
)
def test_what_can_not_be_read_is_bad_input(more: dict[str, Any]) -> None:
    """An unreadable VM, source or definition raises BadInput and nothing else."""
    assert type(refused(**more)) is BadInput


def test_a_name_that_libvirt_takes_in_no_alias_is_bad_input() -> None:
    """A name that libvirt accepts in no alias is refused, as KubeVirt refuses it."""
    with pytest.raises(BadInput, match="alias"):
        mutate(PLAIN, vm(VmInterface("net.1", "vhostuser")), {"net.1": source()})


def test_a_source_for_no_interface_is_bad_input() -> None:
    """A source without an interface is refused: it would be lost silently."""
    with pytest.raises(BadInput, match="net9"):
        mutate(PLAIN, vm(), {"net9": source("net9")})


def test_two_networks_of_one_socket_are_refused() -> None:
    """With one socket for two networks QEMU would listen twice at one path, and the first network would not work."""
    machine = vm(VmInterface("net1", "vhostuser"), VmInterface("net2", "vhostuser"))
    with pytest.raises(DefinitionRefused, match="net1 too") as error:
        mutate(PLAIN, machine, {"net1": source(path="/run/s"), "net2": source("net2", path="/run/s")})
    assert error.value.name == "socket-name-collision"


@pytest.mark.parametrize(
    "device",
    [
        "<interface type='vhostuser'><mac address='02:00:00:00:00:01'/><source type='unix' path='{}' mode='server'/></interface>",
        "<interface type='vhostuser'><source type='unix' path='{}'/><alias name='net0'/></interface>",
        "<serial type='unix'><source mode='bind' path='{}'/></serial>",
        "<rng model='virtio'><backend model='egd' type='unix'><source mode='connect' path='{}'/></backend></rng>",
        "<filesystem type='mount'><source socket='{}'/></filesystem>",
        "<disk type='vhostuser'><source type='unix' path='/var/run/kubevirt/vhostuser/../vhostuser/net1.sock'/></disk>",
    ],
)
@pytest.mark.parametrize("root", ["/var/run", "/run"])
def test_a_socket_that_another_device_has_is_refused(device: str, root: str) -> None:
    """QEMU would have two devices at one path. An interface of ours that has the path already is accepted."""
    other = device.format(f"{root}/kubevirt/vhostuser/net1.sock")
    for domain in (with_device(other), live(LIVE + other)):
        error = refused(domain)
        assert (type(error), error.name) == (DefinitionRefused, "socket-name-collision")
        assert error.message.startswith("network net1: its socket /var/run/kubevirt/vhostuser/net1.sock is that of a <")


def test_interfaces_of_ours_may_change_sockets() -> None:
    """Two interfaces of ours may exchange sockets: both are corrected, so neither socket counts as another device's."""
    machine = vm(VmInterface("net1", "vhostuser"), VmInterface("net2", "vhostuser"))
    before = mutated(PLAIN, machine)
    changed = {"net1": source(path="/var/run/kubevirt/vhostuser/net2.sock"), "net2": source("net2", path="/var/run/x/a")}
    assert ours(mutated(before, machine, changed))["source"]["path"] == "/var/run/kubevirt/vhostuser/net2.sock"


def test_two_networks_of_one_address_are_refused() -> None:
    """The refusal names both networks; libvirt's own would not."""
    machine = vm(*(VmInterface(name, "vhostuser", pci_address="0000:02:00.0") for name in ("net1", "net2")))
    with pytest.raises(DefinitionRefused, match="network net1") as error:
        mutate(PLAIN, machine, sources(machine))
    assert error.value.name == "pci-address"


def test_an_address_that_ours_has_is_free_once_it_moves() -> None:
    """Two interfaces of ours may exchange addresses. An address that libvirt gave to one of ours can be taken by another."""
    there, other = (
        VmInterface("net1", "vhostuser", pci_address="0000:05:00.0"),
        VmInterface("net2", "vhostuser", pci_address="0000:01:00.0"),
    )
    after = mutated(live(), vm(there, other))
    assert [ours(after, name)["address"]["bus"] for name in ("net1", "net2")] == ["0x05", "0x01"]
    machine = vm(VmInterface("net1", "vhostuser"), other)
    with pytest.raises(DefinitionRefused, match="ua-net1") as error:
        mutate(live(), machine, sources(machine))
    assert error.value.name == "pci-address"


def test_addresses_of_hosts_and_other_buses_do_not_count() -> None:
    """A passed-through device's own address, and a disk's unit, are not the guest's PCI slots."""
    machine = vm(VmInterface("net1", "vhostuser", pci_address="0000:00:02.0"))
    domain = with_device(
        "<hostdev><source><address type='pci' bus='0' slot='2'/></source><address type='pci'/></hostdev>"
        "<disk><address type='drive' bus='0' slot='2'/></disk>"
    )
    assert ours(mutated(domain, machine))["address"]["slot"] == "0x02"

"""Definitions of libvirt domains, by the sidecar and by others: each trap is found, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubevirt.kubevirt_traps import TRAPS, Trap
from kubevirt.lint.linted_documents import ManifestDocument, judge
from tests.unit.kubevirt.domains import DATA, mutated
from tests.unit.kubevirt.lint_files import Files

NIC = """<interface type="vhostuser">
      <source type="unix" path="/var/run/kubevirt/vhostuser/poda.sock" mode="server"/>
      <model type="virtio-non-transitional"/><mac address="02:00:00:00:00:01"/>
      <driver name="vhost" queues="2" rx_queue_size="1024"/><alias name="ua-dpdk"/>
    </interface>"""
BACKING = '<memoryBacking><hugepages/><source type="memfd"/><access mode="shared"/></memoryBacking>'
GOOD = f"""<domain type="kvm">
  <name>nfv_dpdk-vm</name><vcpu>4</vcpu>
  {BACKING}
  <devices>
    <interface type="ethernet"><mac address="02:00:00:00:00:02"/><alias name="ua-default"/></interface>
    {NIC}
  </devices>
</domain>"""
SECOND = NIC.replace("poda", "podb").replace("00:01", "00:03")
CELLS = '<cpu><numa><cell id="0" memAccess="{}"/><cell id="1" memAccess="{}"/></numa></cpu><devices>'


def found(*texts: object) -> list[Trap]:
    return list(judge([ManifestDocument("d.xml", text) for text in texts]).findings)


def test_a_good_definition() -> None:
    """Shared memory of each kind, several interfaces, and interfaces of other types beside them cause no finding."""
    assert found(GOOD) == []
    assert found(GOOD.replace("</devices>", f"{SECOND}</devices>")) == []
    without = GOOD.replace('<access mode="shared"/>', "")
    assert found(without.replace("<devices>", CELLS.format("shared", "shared"))) == []


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("domain-*.xml")))
def test_what_the_sidecar_makes(name: str) -> None:
    """KubeVirt's own definitions have no finding before the sidecar has edited them, nor after."""
    text = (DATA / name).read_text()
    if "<devices" not in text:
        text = text.replace("</domain>", "<devices/></domain>")
    assert found(text) == []
    assert found(mutated(text)) == []


def test_a_definition_before_the_sidecar() -> None:
    """Without a vhost-user interface there is no finding, whatever the memory is."""
    assert found(GOOD.replace(NIC, "").replace('<access mode="shared"/>', "")) == []


CASES = {
    "no access": ("no-shared-memory", "error", '<access mode="shared"/>', ""),
    "no backing": ("no-shared-memory", "error", BACKING, ""),
    "private": ("private-memory", "error", 'access mode="shared"', 'access mode="private"'),
    "a private cell": ("private-memory", "error", "<devices>", CELLS.format("shared", "private")),
    "client": ("server-mode", "error", 'mode="server"', 'mode="client"'),
    "no path": ("no-source", "error", ' path="/var/run/kubevirt/vhostuser/poda.sock"', ""),
    "long path": ("path-too-long", "error", "poda.sock", f"{'a' * 90}.sock"),
    "path elsewhere": ("path-not-allowed", "warning", "/var/run/kubevirt/vhostuser/poda.sock", "/tmp/poda.sock"),
    "reconnect": ("reconnect", "error", 'mode="server"/>', 'mode="server"><reconnect enabled="yes"/></source>'),
    "model": ("wrong-model", "error", "virtio-non-transitional", "e1000"),
    "no model": ("wrong-model", "error", '<model type="virtio-non-transitional"/>', ""),
    "mtu": ("mtu-element", "warning", "<model", '<mtu size="9000"/><model'),
    "managed": ("target-managed", "error", "<model", '<target dev="tap0" managed="no"/><model'),
    "queues": ("queues-over-vcpus", "warning", 'queues="2"', 'queues="8"'),
    "ring": ("ring-size", "error", 'rx_queue_size="1024"', 'rx_queue_size="2048"'),
    "ring of words": ("ring-size", "error", 'rx_queue_size="1024"', 'tx_queue_size="many"'),
    "iommu without a device": ("iommu", "error", 'queues="2"', 'iommu="on"'),
    "group MAC": ("mac-mismatch", "error", "02:00:00:00:00:01", "01:00:00:00:00:01"),
    "two with one MAC": ("mac-conflict", "error", "02:00:00:00:00:02", "02:00:00:00:00:01"),
    "two with one socket": ("socket-name-collision", "error", "</devices>", f"{SECOND.replace('podb', 'poda')}</devices>"),
    "not XML": ("bad-input", "error", "</devices>", ""),
    "not a domain": ("bad-input", "error", "domain", "network"),
    "entities": ("bad-input", "error", "<domain", '<!DOCTYPE a [<!ENTITY b "c">]><domain'),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_traps_of_a_definition(case: str) -> None:
    """Each trap is the only finding, with name, severity, remedy and place."""
    name, severity, before, after = CASES[case]
    assert before in GOOD
    [only] = found(GOOD.replace(before, after))
    assert (only.name, only.severity, only.subject) == (name, severity, "d.xml: domain XML")
    assert only.remedy
    assert only.path or name == "bad-input"


def test_an_interface_behind_an_iommu() -> None:
    """With an IOMMU in the VM a note says what the switch needs."""
    text = GOOD.replace('queues="2"', 'iommu="on"').replace("</devices>", '<iommu model="intel"/></devices>')
    assert [(each.name, each.severity) for each in found(text)] == [("iommu", "note")]


def test_an_interface_of_another_type_has_the_name() -> None:
    """With its VM given, an interface of another type with the name of the vhost-user one is found."""
    files = Files()
    text = GOOD.replace(NIC, '<interface type="ethernet"><alias name="ua-dpdk"/></interface>')
    assert [each.name for each in found(text, files.kubevirt, files.network, files.vm)] == ["foreign-interface"]
    assert found(text.replace("nfv_dpdk-vm", "other"), files.kubevirt, files.network, files.vm) == []


@settings(max_examples=200)
@given(st.data())
def test_any_damage_can_be_judged(data: st.DataObject) -> None:
    """A definition with a piece taken out or put in gives findings or none, and raises nothing."""
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 60)))
    piece = data.draw(st.text(max_size=5) | st.sampled_from(["<interface>", "<a/>", '"', "&amp;", json.dumps("x")]))
    assert {each.name for each in found(GOOD[:start] + piece + GOOD[end:])} <= set(TRAPS)

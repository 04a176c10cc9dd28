"""Line by line, what the mutator changes in definitions as KubeVirt renders them.

The expected differences are in `data/NAME.diff`. `python -m tests.unit.kubevirt.test_kubevirt_domain_golden` writes them anew;
read what it wrote.
"""

from __future__ import annotations

import difflib

import pytest

from kubevirt.domain import Policy
from kubevirt.vmi import VmInterface
from tests.unit.kubevirt.domains import DATA, complete, mutated, source, vm

FILES = (
    "domain-hooks.xml",
    "domain-x86_64-root.xml",
    "domain-metadata.xml.tmpl",
    "domain-numa.xml",
    "domain-qemu-commandline.xml",
    "domain-hugepages-memfd.xml",
    "domain-hugepages-numa.xml",
)
MACHINE = vm(
    VmInterface("default", ""),
    VmInterface("net1", "vhostuser", pci_address="0000:02:01.0", acpi_index=3),
    VmInterface("net2", "vhostuser", boot_order=1, state="down"),
    multiqueue=True,
)
SOURCES = {"net1": source("net1", rx_queue_size=1024, tx_queue_size=512), "net2": source("net2", mtu=9000, mode="client")}


def difference(name: str) -> str:
    """The lines of a file that change, with `-` and `+`, without line numbers and without lines around them."""
    before = complete(name)
    after = mutated(before, MACHINE, SOURCES, Policy("override"))
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in lines if not line.startswith(("---", "+++")))


@pytest.mark.parametrize("name", FILES)
def test_definitions_of_kubevirt(name: str) -> None:
    """Two interfaces, shared memory and an MTU are added where they belong, and no other line changes."""
    assert difference(name) == (DATA / f"{name}.diff").read_text()


if __name__ == "__main__":
    for each in FILES:
        (DATA / f"{each}.diff").write_text(difference(each))

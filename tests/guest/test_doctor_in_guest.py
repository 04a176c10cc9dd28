"""`doctor` and `setup dpdk` on a kernel with two NUMA nodes, all of whose files a test may write: huge pages, interrupts."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tests.lab.hardware.full_guest import FullGuest
from tests.lab.hardware.snapshot import SETTINGS, START_SWITCH
from tests.lab.node.remedies import command_of

COMMAND: Final = ("env", f"USERSPACE_CNI_CONFIG={SETTINGS}", "python3", "-m", "userspace_cni")
FAULTS: Final = """
mkdir -p /etc/sysctl.d
ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-mask=0x2 other_config:dpdk-socket-mem=256,768
ovs-vsctl add-br br-a -- set Bridge br-a datapath_type=netdev
umount /dev/hugepages
echo always >/sys/kernel/mm/transparent_hugepage/enabled
sysctl -w kernel.numa_balancing=1
ip address add 192.0.2.1/24 dev k0
ip link set k0 up
ip -n outside address add 192.0.2.2/24 dev o-k0
for each in $(sed -n 's/^ *\\([0-9]*\\):.* k0.*/\\1/p' /proc/interrupts); do echo 1 >/proc/irq/$each/smp_affinity_list; done
ip netns exec outside ping -i 0.02 192.0.2.1 >/dev/null 2>&1 </dev/null &
"""
"""Each is of a kind that only this kernel has."""
MADE: Final = {
    "hugepages-short",
    "hugetlbfs-missing",
    "hugepages-not-kept",
    "transparent-hugepages",
    "numa-balancing",
    "pmd-interrupt",
}


def findings(guest: FullGuest) -> list[dict[str, Any]]:
    """The findings of `doctor` that are not good. It ends as by a finding, because its CPUs are not isolated."""
    done = guest.run(*COMMAND, "doctor", "--json")
    assert (done.code, "Traceback" in done.stderr) == (1, False), (done.stdout, done.stderr)
    return [each for each in json.loads(done.stdout)["findings"] if each["severity"] != "good"]


def test_faults_of_the_kernel_go_by_their_remedies(guest: FullGuest) -> None:
    """Too few pages on a node, none mounted or kept, memory that the kernel moves, and an interrupt at a polling thread's CPU."""
    guest.shell(FAULTS)
    found = findings(guest)
    assert {each["name"] for each in found} >= MADE, found
    mended = [each for each in found if each["name"] in MADE]
    short = next(each for each in mended if each["name"] == "hugepages-short")
    assert "node 1 has 640 MiB, and ovs-vswitchd asks for 768 MiB there" in short["message"]
    interrupts = {each["path"] for each in mended if each["name"] == "pmd-interrupt" and "k0" in each["message"]}
    assert interrupts, found
    mend(guest, mended, interrupts)
    left = still(guest, interrupts)
    assert {each["name"] for each in left} == {"hugepages-not-kept"}, left  # pages were added after it was said how many to keep
    mend(guest, left, interrupts)
    assert still(guest, interrupts) == []


def mend(guest: FullGuest, found: list[dict[str, Any]], interrupts: set[str]) -> None:
    """Run each remedy as it stands; QEMU's own interrupts may have no other CPU, those named must."""
    for each in found:
        done = guest.run("sh", "-ec", command_of(each["remedy"]))
        assert done.code == 0 or (each["name"] == "pmd-interrupt" and each["path"] not in interrupts), (each, done)


def still(guest: FullGuest, interrupts: set[str]) -> list[dict[str, Any]]:
    """Those findings that were made which are there."""
    found = [each for each in findings(guest) if each["name"] in MADE]
    return [each for each in found if each["name"] != "pmd-interrupt" or each["path"] in interrupts]


FRESH: Final = f"""
kill $(cat /run/openvswitch/ovs-vswitchd.pid)
while [ -e /run/openvswitch/ovs-vswitchd.pid ]; do sleep 0.1; done
ovs-vsctl --no-wait clear Open_vSwitch . other_config
umount /dev/hugepages
for try in $(seq 60); do  # the switch gives its memory back after its file of the pid has gone
  for node in 0 1; do echo 0 >/sys/devices/system/node/node$node/hugepages/hugepages-2048kB/nr_hugepages; done
  ! grep '^HugePages_Total: *0$' /proc/meminfo || break
  sleep 0.2
done
grep '^HugePages_Total: *0$' /proc/meminfo || {{ grep -l huge /proc/[0-9]*/maps >&2; exit 1; }}
mkdir -p /run/systemd/system /etc/tmpfiles.d
{START_SWITCH}
ovs-vsctl get Open_vSwitch . dpdk_initialized
"""
"""A node whose switch runs without DPDK, as after its package was installed; the directory says that systemd runs it."""


def test_a_fresh_node_is_set_up(guest: FullGuest) -> None:
    """The printed commands reserve pages on both nodes and start DPDK in the switch that runs; then there is nothing to do."""
    assert guest.shell(FRESH).splitlines()[-1] == "false"
    setup = (*COMMAND, "setup", "dpdk", "--memory", "256Mi", "--pod-memory", "64Mi", "--pmd-cpus", "0-1")
    printed = guest.do(*setup)
    guest.do("sh", "-ex", stdin=printed)
    assert guest.do("ovs-vsctl", "get", "Open_vSwitch", ".", "dpdk_initialized") == "true\n"
    assert guest.do("ovs-vsctl", "get", "Open_vSwitch", ".", "other_config:dpdk-socket-mem") == '"256,256"\n'
    numbers = guest.shell("cat /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages")
    assert numbers.split() == ["160", "160"]
    kept = guest.do("cat", "/etc/tmpfiles.d/99-userspace-cni-hugepages.conf")
    assert re.findall(r"node/node(\d)/.* (\d+)$", kept, re.MULTILINE) == [("0", "160"), ("1", "160")]
    again = guest.do(*setup)
    assert "# nothing to do" in again
    assert [line for line in again.splitlines() if not line.startswith("#")] == []

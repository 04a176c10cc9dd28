"""`setup dpdk` on a Debian whose Open vSwitch was never started: what it prints is run, and OVS-DPDK runs.

The number of huge pages is a file of the test's own in the place of the kernel's, so that the machine keeps its pages: the switch
takes those that a switch beside it leaves. On a kernel's own file, with two NUMA nodes, it is tried in tests/guest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.lab.node.fresh_machine import ENTER, MACHINE, NEVER_STARTED
from tests.lab.switch.switch import SCRIPT

pytestmark = pytest.mark.timeout(300)

POOL: Final = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
MOUNT: Final = Path("/dev/hugepages")
NO_PAGES: Final = f"""
echo 0 > number && mount --bind number {POOL}
setup() {{ userspace-cni setup dpdk --memory 128Mi --pod-memory 64Mi "$@"; }}
"""
STATE: Final = f"""
echo '=== state'
ovs-vsctl get Open_vSwitch . dpdk_initialized other_config
readlink /etc/alternatives/ovs-vswitchd
cat {POOL} /etc/sysctl.d/99-userspace-cni-hugepages.conf
grep -h hugetlbfs /etc/fstab /proc/mounts
"""
DONE: Final = "# nothing to do: this node has what OVS-DPDK needs"


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory for the script; a switch in it is stopped, and the mount point that it made is removed."""
    was_there = MOUNT.exists()
    with TemporaryDirectory(prefix="uc-") as directory:
        yield Path(directory)
        for mark in Path(directory).glob("*/.private-switch"):
            subprocess.run([SCRIPT, "stop", mark.parent], check=True)
    if not was_there and MOUNT.exists():
        MOUNT.rmdir()


def run(room: Path, script: str) -> dict[str, str]:
    """What the script prints in each of its parts, which `=== NAME` begin, on a machine of its own."""
    file = room / "script.sh"
    file.write_text(f"{MACHINE}{NEVER_STARTED}{NO_PAGES}{script}")
    done = subprocess.run(
        [*ENTER, "bash", "-e", "-o", "pipefail", file],
        cwd=room,
        env={
            "PATH": os.environ["PATH"],
            "TMPDIR": str(room),
            "LC_ALL": "C.UTF-8",
            "PRIVATE_SWITCH_PAGES": "384",
            "PRIVATE_SWITCH_SOCKET_MEM": "128",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    _, *parts = re.split(r"^=== (.*)\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def require_ready(state: str) -> None:
    """DPDK runs, with what was asked for, and pages and mount are kept."""
    initialised, options, program, now, boot, *mounts = state.splitlines()
    assert (initialised, program) == ("true", "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
    for option in ('dpdk-init="true"', 'dpdk-socket-mem="128"', 'dpdk-socket-limit="128"', "pmd-cpu-mask="):
        assert option in options, state
    assert (now, boot) == ("96", "vm.nr_hugepages=96")
    assert mounts[0] == "hugetlbfs /dev/hugepages hugetlbfs pagesize=2M 0 0"
    assert mounts[-1].startswith("hugetlbfs /dev/hugepages hugetlbfs rw")


@pytest.mark.parametrize("way", ["printed", "applied"])
def test_a_node_that_was_never_set_up(room: Path, way: str) -> None:
    """The printed script, and --apply, start OVS-DPDK without a restart; then there is nothing to do, and nothing changes."""
    ways = {"printed": "setup > commands; sh -ex commands", "applied": "setup --apply"}
    told = run(
        room,
        f"""
echo '=== first'
{ways[way]}
{STATE}
echo '=== second'
touch mark; setup; setup --apply
find /etc -newer mark -type f
echo '=== doctor'
userspace-cni doctor --json --seconds 0.2 2> /dev/null || test $? = 1
""",
    )
    require_ready(told["state"])
    assert DONE in told["second"]
    assert not re.search(r"^(?!#|nothing to do)", told["second"].strip(), re.MULTILINE), told["second"]
    names = {each["name"] for each in json.loads(told["doctor"])["findings"] if each["severity"] in ("error", "warning")}
    assert not {each for each in names if each.startswith(("hugepages", "dpdk", "hugetlbfs"))}, names


def test_a_switch_that_runs_without_dpdk(room: Path) -> None:
    """It is restarted only if that is asked for; otherwise the command is told, with what it costs."""
    told = run(
        room,
        f"""
service openvswitch-switch start
ovs-vsctl get Open_vSwitch . dpdk_initialized
pid=$(cat /run/openvswitch/ovs-vswitchd.pid)
echo '=== printed'
setup
echo '=== applied'
setup --apply
test $pid = $(cat /run/openvswitch/ovs-vswitchd.pid)
echo '=== again'
setup
echo '=== restarted'
setup --apply --restart
{STATE}
echo '=== last'
setup
""",
    )
    later = (
        "# when traffic may stop: service openvswitch-switch restart   (the ovs-vswitchd that runs is built without DPDK; no port"
    )
    for part in ("printed", "applied", "again"):
        assert later in told[part], told[part]
    assert DONE in told["again"]
    assert "\nservice openvswitch-switch restart\n" in told["restarted"]
    require_ready(told["state"])
    assert DONE in told["last"]
    assert "when traffic may stop" not in told["last"]


def test_a_run_that_dies_after_each_command(room: Path) -> None:
    """Whatever was done before, another run does what is left, in fewer commands each time."""
    told = run(
        room,
        f"""
echo '=== runs'
for run in 1 2 3 4 5 6 7 8 9; do
    setup > commands
    grep -v '^#' commands > left || break
    wc -l < left
    head -n 1 left | sh -ex
done
{STATE}
echo '=== last'
setup
""",
    )
    left = [int(line) for line in told["runs"].splitlines() if line.isdigit()]
    assert left[-1] == 1
    assert left == sorted(set(left), reverse=True)
    require_ready(told["state"])
    assert DONE in told["last"]


REMEDY: Final = """
import json, sys
for each in json.load(sys.stdin)["findings"]:
    if each["severity"] == "error" and each["subject"] in ("DPDK", "huge pages"):
        print(each["name"])
        open("remedy", "w").write(each["remedy"])
        break
"""
"""Prints the name of the first error in the JSON of `doctor`, and writes its remedy to a file."""


def test_a_switch_without_dpdk_by_what_doctor_says(room: Path) -> None:
    """The remedies of doctor alone, each run as it stands, bring a switch without DPDK and without pages to DPDK."""
    told = run(
        room,
        f"""
mount --bind number /proc/sys/vm/nr_hugepages
cat > read.py <<'END'
{REMEDY}
END
look() {{ userspace-cni doctor --json --seconds 0.2 2> /dev/null || test $? = 1; }}
next() {{ look | python3 read.py; }}
mend() {{ next; sh -ec "$(cat remedy)" > /dev/null; }}
service openvswitch-switch start > /dev/null
ovs-vsctl set Open_vSwitch . other_config:dpdk-socket-mem=128 other_config:dpdk-socket-limit=128
echo '=== errors'
mend
mend
sed -n 1p number
mend
next
echo '=== state'
ovs-vsctl get Open_vSwitch . dpdk_initialized
""",
    )
    assert told["errors"].split() == ["dpdk-not-built", "dpdk-off", "0", "hugepages-none"]
    assert told["state"] == "true\n"


def test_a_package_that_would_restart_the_switch(room: Path) -> None:
    """Where ovs-vswitchd runs, a missing package is printed, and installed only if a restart is asked for."""
    told = run(
        room,
        """
service openvswitch-switch start
mount -t tmpfs none /usr/lib/openvswitch-switch-dpdk
echo '=== printed'
setup
echo '=== applied'
setup --apply || test $? = 1
""",
    )
    assert "\napt-get install -y openvswitch-switch-dpdk\n" in told["printed"]
    assert "may restart the ovs-vswitchd that runs here" in told["applied"]
    assert "apt-get" not in told["applied"]


def test_json_of_what_is_done(room: Path) -> None:
    """stdout is one JSON value, also while commands run; a command that fails is named, and ends it with 1."""
    told = run(
        room,
        """
setup --apply --json 2> /dev/null > done.json
echo '=== done'
cat done.json
rm -r /etc/sysctl.d
echo '=== failed'
setup --apply --json 2> /dev/null || test $? = 1
""",
    )
    assert json.loads(told["done"])["steps"] == []
    assert "/etc/sysctl.d/99-userspace-cni-hugepages.conf: it ended with" in json.loads(told["failed"])["error"]


def test_options_of_a_stopped_switch_stay(room: Path) -> None:
    """While the database gives no answer its options are not known: those that it has stay, and the missing ones are added."""
    told = run(
        room,
        """
service openvswitch-switch start > /dev/null
ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-mask=0x1 other_config:dpdk-socket-mem=64
service openvswitch-switch stop > /dev/null
echo '=== applied'
userspace-cni setup dpdk --apply
echo '=== options'
ovs-vsctl get Open_vSwitch . other_config:pmd-cpu-mask other_config:dpdk-socket-mem other_config:dpdk-init
""",
    )
    assert told["options"].split() == ['"0x1"', '"64"', '"true"'], told["applied"]
    assert "still missing" not in told["applied"]


def test_what_was_set_by_someone_stays(room: Path) -> None:
    """Options and pages that are there are kept, and another value is set only if it is asked for by name."""
    told = run(
        room,
        """
setup --apply
ovs-vsctl set Open_vSwitch . other_config:dpdk-socket-mem=64 other_config:pmd-cpu-mask=0x1
echo '=== kept'
userspace-cni setup dpdk
echo '=== asked'
setup --pmd-cpus 1
""",
    )
    assert DONE in told["kept"]
    assert "64 MiB for the switch (dpdk-socket-mem has it)" in told["kept"]
    options = 'other_config:pmd-cpu-mask="0x2" other_config:dpdk-socket-mem="128"'
    assert f"ovs-vsctl --timeout=60 set Open_vSwitch . {options}" in told["asked"]
    assert "# when traffic may stop: service openvswitch-switch restart   (dpdk-socket-mem takes effect" in told["asked"]

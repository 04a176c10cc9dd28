"""The private switch that the other tests use."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.switch.switch import SCRIPT, Switch, wait_until

TICKS = os.sysconf("SC_CLK_TCK")
PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

OWN_NUMBERS = f"""
trap 'umount --lazy {PAGES} /proc/meminfo' EXIT
mount --bind "$1/pages" {PAGES} && mount --bind "$1/meminfo" /proc/meminfo && shift && "$@"
"""
"""Run a command in a mount namespace in which two files replace the numbers of hugepages and memory."""
VSWITCHD = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
SCHEMA = "share/openvswitch/vswitch.ovsschema"
WITHOUT_DRIVERS = """
for drivers in /usr/lib/x86_64-linux-gnu/dpdk/*/; do mount -t tmpfs -o mode=755 none "$drivers"; done
"$0" start --no-huge "$1"; status=$?
"$0" stop "$1"; exit $status
"""
"""Start and stop a switch in a mount namespace in which DPDK finds no driver."""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_two_at_once_and_each_ends_its_own() -> None:
    """Two switches run side by side; stopping one leaves the other, and stop ends even processes that a signal had stopped."""
    with Switch() as first:
        with Switch(huge=False) as second:
            assert second.vsctl("get", "Open_vSwitch", ".", "dpdk_initialized") == "true"
            pids = (second.ovsdb_pid, second.vswitchd_pid)
            second.pause_ovsdb()
            second.pause_vswitchd()
        assert not any(alive(pid) for pid in pids)
        assert not second.dir.exists()
        first.vsctl("add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev")
        assert first.interface("br0")["ofport"] == 65534


def test_an_idle_polling_thread_sleeps() -> None:
    """With a port and no traffic, the switch leaves its core to others; without the setting it uses all of it."""
    used = {}
    for longest in ("1000", "0"):
        with Switch(huge=False, environment={"PRIVATE_SWITCH_PMD_SLEEP": longest}) as switch:
            switch.vsctl("add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev")
            switch.vsctl("add-port", "br0", "v0", "--", "set", "Interface", "v0", "type=dpdkvhostuser")
            wait_until(lambda switch=switch: "queue-id" in switch.appctl("dpif-netdev/pmd-rxq-show"))  # type: ignore[misc]
            before = cpu_seconds(switch.vswitchd_pid)
            time.sleep(0.5)  # the time over which is measured
            used[longest] = cpu_seconds(switch.vswitchd_pid) - before
    assert used["1000"] < used["0"] / 2


def test_a_failing_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """The script ends with 1, names the fault and shows the log, and its ovsdb-server is gone."""
    environment = os.environ | {"PRIVATE_SWITCH_LCORE_MASK": "0x8000000000"}
    directory = tmp_path / "s"
    argv = [str(SCRIPT), "start", "--no-huge", str(directory)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ovs-vswitchd does not start" in done.stderr
    assert "--- the end of" in done.stderr
    assert not list(directory.glob("*.pid"))


def test_the_schema_is_the_one_of_the_programs(tmp_path: Path) -> None:
    """An unpacked switch gets the schema that was unpacked with it, not this machine's."""
    program = tmp_path / "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
    unpacked = tmp_path / "usr" / SCHEMA
    for path in (program, unpacked):
        path.parent.mkdir(parents=True)
    shutil.copy(VSWITCHD, program)
    schema = json.loads(Path("/usr", SCHEMA).read_text())
    unpacked.write_text(json.dumps(schema | {"version": "8.99.0"}))
    for vswitchd, version in ((str(program), "8.99.0"), (VSWITCHD, schema["version"])):
        with Switch(huge=False, environment={"VSWITCHD": vswitchd}) as switch:
            argv = ["ovsdb-client", "get-schema-version", switch.ovsdb, "Open_vSwitch"]
            told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
        assert told.strip() == version


def test_drivers_of_dpdk_that_are_missing(place: Path) -> None:
    """A missing driver, of any bus that the switch names to DPDK or of packet pools, is named with its package."""
    directory = place / "s"
    argv = ["unshare", "--mount", "--propagation=private", "bash", "-c", WITHOUT_DRIVERS, str(SCRIPT), str(directory)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False).stderr
    log = (directory / "ovs-vswitchd.log").read_text()
    [named] = re.findall("EAL ARGS: (.*)", log)
    missing = [f"bus_{bus}" for bus in re.findall(r"-a ([a-z]+):", named)] + ["mempool_ring"]
    for driver in missing:
        assert f"librte_{driver}.so." in said
        assert f" librte-{driver.replace('_', '-')}" in said.partition("apt-get install")[2]


def test_a_foreign_directory_is_not_touched(tmp_path: Path) -> None:
    """Neither start nor stop does anything in a directory that has files and was not made by start."""
    (tmp_path / "conf.db").write_text("the database of another switch")
    for command in ("start", "stop", "restart-ovsdb"):
        done = subprocess.run([str(SCRIPT), command, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (1, ["conf.db"])
        assert "not a private switch" in done.stderr


def test_a_namespace_that_a_program_holds() -> None:
    """While a program such as an agent has the namespace's file open, stop still ends and returns the hugepages."""
    with Switch(huge=False) as switch:
        (switch.dir / "hugepages.added").write_text("0")
        with Path(switch.netns).open("rb"):
            done = subprocess.run([str(SCRIPT), "stop", str(switch.dir)], capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            assert not (switch.dir / "hugepages.added").exists()
            assert not (switch.dir / "netns").exists()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path: DPDK's sockets are below it."""
    with TemporaryDirectory(prefix="psw-", dir="/tmp") as directory:
        yield Path(directory)


def with_numbers(place: Path, pages: int, available_kib: int, *argv: str) -> tuple[str, str]:
    """Run a command on a machine with so many hugepages and so much memory; the number of pages afterwards, and its stderr."""
    (place / "pages").write_text(f"{pages}\n")
    lines = Path("/proc/meminfo").read_text().splitlines(keepends=True)
    meminfo = [f"MemAvailable: {available_kib:8} kB\n" if line.startswith("MemAvailable:") else line for line in lines]
    (place / "meminfo").write_text("".join(meminfo))
    command = ["unshare", "--mount", "bash", "-c", OWN_NUMBERS, "numbers", str(place), *argv]
    environment = os.environ | {"PRIVATE_SWITCH_PAGES": "512"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return (place / "pages").read_text().strip(), done.stderr


def test_more_hugepages_than_there_is_memory_for(place: Path) -> None:
    """Pages for which memory is too small are not taken even for a moment: the switch starts without hugepages and says why."""
    directory = place / "s"
    before = [
        "bash",
        "-c",
        '"$0" start "$1" && cp "$1/hugepages.added" "$1/../added"; "$0" stop "$1"',
        str(SCRIPT),
        str(directory),
    ]
    left, said = with_numbers(place, 7, (2 * 512 + 511) << 10, *before)
    assert left == "7"
    assert "no 512 hugepages to be had: they take 1024 MiB of memory, 1535 MiB are available" in said
    assert not (place / "added").exists()


@pytest.mark.parametrize(("boot", "left"), [("", "88"), ("this", "88"), ("another", "600")])
@pytest.mark.parametrize("command", [["start", "--no-huge"], ["stop"]])
def test_hugepages_of_a_switch_that_was_killed(command: list[str], boot: str, left: str, place: Path) -> None:
    """Hugepages of a switch that ended without a stop are returned by the next start and by stop.

    A boot clears the note of them.
    """
    directory = place / "s"
    directory.mkdir()
    (directory / ".private-switch").touch()
    this = Path("/proc/sys/kernel/random/boot_id").read_text()
    (directory / "hugepages.added").write_text(f"512 {this if boot == 'this' else boot}".strip() + "\n")
    script = '"$0" "$@" && test ! -e "${!#}/hugepages.added"; status=$?; "$0" stop "${!#}"; exit "$status"'
    assert with_numbers(place, 600, 8 << 20, "bash", "-c", script, str(SCRIPT), *command, str(directory)) == (left, "")


@pytest.mark.parametrize("program", ["cat", "mountpoint", "ls", "ovs-vsctl"])
def test_a_question_that_cannot_be_asked(program: str, tmp_path: Path) -> None:
    """When the program fails by which the script asks, a switch that may run is not started anew and a mounted namespace stays.

    The next try, which can ask, leaves nothing.
    """
    broken = tmp_path / "bin" / program
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    environment = os.environ | {"PATH": f"{broken.parent}:{os.environ['PATH']}"}

    def told(*argv: str) -> subprocess.CompletedProcess[str]:
        argv = (str(SCRIPT), *argv)
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)

    with Switch(huge=False) as switch:
        pids, database = (switch.ovsdb_pid, switch.vswitchd_pid), (switch.dir / "conf.db").stat().st_ino
        again = told("start", "--no-huge", str(switch.dir))
        assert again.returncode == 1
        assert all(alive(pid) for pid in pids)
        assert (switch.dir / "conf.db").stat().st_ino == database
        (switch.dir / "hugepages.added").write_text("0")
        ended = told("stop", str(switch.dir))
        assert (ended.returncode != 0) == (program in ("cat", "mountpoint")), ended.stderr
        assert all(alive(pid) for pid in pids) == (program == "cat")
        assert (switch.dir / "netns").exists() == (program in ("cat", "mountpoint"))
        assert (switch.dir / "hugepages.added").exists() == (program == "cat")
    assert not switch.dir.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "conf.db").write_text("the database of another switch")
    assert told("start", "--no-huge", str(other)).returncode == 1
    assert [path.name for path in other.iterdir()] == ["conf.db"]


def test_usage() -> None:
    """Without a command the script prints its usage, and ends with 2."""
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "private-switch start" in done.stderr

"""`doctor` on a real switch: a test makes a fault, reads the finding, runs the remedy as it stands, and the finding is gone.

What takes another kernel or machine is in tests/guest, what no machine here has in
tests/unit/diagnosis/test_node_health.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node
from tests.lab.node.remedies import command_of
from tests.lab.switch.switch import Switch
from userspace_cni.base.cpu_sets import as_mask

CPUS: Final = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Ward:
    """A node, and the words before each command: those that enter a mount namespace."""

    node: Node
    prefix: Sequence[str] = ()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if not self.prefix:
            return run_command(self.node.environ, "doctor", *arguments)
        argv = [*self.prefix, sys.executable, "-m", "userspace_cni", "doctor", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **self.node.environ})

    def findings(self, name: str = "") -> list[dict[str, Any]]:
        """The findings, of this name if one is given. The command never fails in another way than by finding something."""
        done = self.run("--json", "--seconds=0.3", f"--bin-dir={self.node.bin}")
        assert done.returncode in (0, 1), (done.stdout, done.stderr)
        return [each for each in json.loads(done.stdout)["findings"] if not name or each["name"] == name]

    def finding(self, name: str, path: str = "") -> dict[str, Any]:
        """The finding of that name, and about that thing."""
        found = [each for each in self.findings(name) if not path or each["path"] == path]
        assert len(found) == 1, (name, path, found)
        return found[0]

    def is_gone(self, name: str, path: str = "") -> bool:
        return not [each for each in self.findings(name) if not path or each["path"] == path]

    def mend(self, name: str, path: str = "") -> None:
        """Run the command of the finding's remedy, after which it must be gone."""
        finding = self.finding(name, path)
        command = command_of(finding["remedy"])
        done = subprocess.run([*self.prefix, "sh", "-ec", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        assert self.is_gone(name, path), (command, self.findings(name))


@pytest.fixture
def ward(node: Node) -> Ward:
    return Ward(node)


@pytest.fixture
def options(switch: Switch) -> Iterator[Switch]:
    """The switch, whose options are put back afterwards."""
    former = switch.rows("Open_vSwitch")[0]["other_config"]
    yield switch
    switch.vsctl("clear", "Open_vSwitch", ".", "other_config")
    switch.vsctl("set", "Open_vSwitch", ".", *(f'other_config:{name}="{value}"' for name, value in former.items()))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("pmd-cpu-absent", "pmd-cpu-mask", as_mask({CPUS[-1], 1000})),
        ("pmd-everywhere", "pmd-cpu-mask", as_mask(CPUS)),
        ("pmd-mask-invalid", "pmd-cpu-mask", "cores"),
        ("pmd-mask-unset", "pmd-cpu-mask", ""),
        ("dpdk-socket-limit", "dpdk-socket-limit", ""),
        ("pmd-sleeps", "pmd-sleep-max", "100"),
    ],
)
def test_an_option_of_the_switch(options: Switch, ward: Ward, name: str, key: str, value: str) -> None:
    """An option that cannot be meant, or is missing, is named with the command that sets it."""
    if name == "pmd-sleeps":
        options.vsctl("remove", "Open_vSwitch", ".", "other_config", "pmd-maxsleep")
    options.vsctl("remove", "Open_vSwitch", ".", "other_config", key)
    assert (name in {each["name"] for each in ward.findings()}) == (not value)
    if value:
        options.vsctl("set", "Open_vSwitch", ".", f"other_config:{key}={value}")
    ward.mend(name)


def test_one_cpu_for_dpdk_and_polling(options: Switch, ward: Ward) -> None:
    """Other threads of ovs-vswitchd on the CPU of a polling thread are reported, with another CPU for them."""
    options.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={as_mask({CPUS[-1]})}")
    options.vsctl("set", "Open_vSwitch", ".", f"other_config:dpdk-lcore-mask={as_mask({CPUS[-1]})}")
    ward.mend("pmd-lcore-shared")


def move_one(ward: Ward, pid: int) -> None:
    """Run the remedy of shared CPUs for this process alone, since others of the machine are no test's; then it is not named."""
    remedy = command_of(ward.finding("pmd-cpu-shared")["remedy"])
    pids = re.search(r"echo ([0-9 ]+) ", remedy)
    assert pids, remedy
    assert str(pid) in pids[1].split()
    subprocess.run(["sh", "-ec", remedy.replace(pids[1], str(pid))], check=True, capture_output=True)
    assert not [each for each in ward.findings("pmd-cpu-shared") if f"process {pid} " in each["message"]]


def test_a_process_on_the_cpu_of_a_polling_thread(options: Switch, ward: Ward) -> None:
    """It is named with its share of the CPU, and the command moves it to another one."""
    options.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={as_mask({CPUS[-1]})}")
    with subprocess.Popen(["taskset", "-c", str(CPUS[-1]), "sh", "-c", "while :; do :; done"]) as process:
        try:
            found = ward.finding("pmd-cpu-shared")
            assert re.search(rf"process {process.pid} \(sh\) took \d+% of CPU {CPUS[-1]}(,|$)", found["message"]), found
            move_one(ward, process.pid)
        finally:
            process.kill()


def test_a_process_that_sleeps_there(options: Switch, ward: Ward) -> None:
    """One that may only run there is reported before it wakes."""
    options.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={as_mask({CPUS[-1]})}")
    with subprocess.Popen(["taskset", "-c", str(CPUS[-1]), "sleep", "600"]) as process:
        try:
            assert f"process {process.pid} (sleep) is bound to CPU" in ward.finding("pmd-cpu-shared")["message"]
            move_one(ward, process.pid)
        finally:
            process.kill()


def test_a_directory_of_sockets_that_is_missing(options: Switch, ward: Ward) -> None:
    """The directory that the switch's option names for its sockets is made by the remedy."""
    options.vsctl("set", "Open_vSwitch", ".", "other_config:vhost-sock-dir=sockets")
    ward.mend("sock-dir-missing")


def test_few_open_files(switch: Switch, ward: Ward) -> None:
    """A limit of open files that ovs-vswitchd nearly reaches is reported, and raised by the remedy."""
    pid = switch.vswitchd_pid
    former = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + 4, former[1]))
    try:
        ward.mend("open-files")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, former)


def test_a_directory_that_all_may_write(ward: Ward, node: Node) -> None:
    """No other user may write in the directory of the agent's socket."""
    directory = node.directory / "run"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    ward.mend("directory-open", "run_dir")


@pytest.mark.parametrize(("name", "path", "option"), [("read-only", "state_dir", "ro"), ("no-exec", "bin_dir", "noexec")])
def test_a_mount_of_a_directory(ward: Ward, node: Node, name: str, path: str, option: str) -> None:
    """A file system on which nothing can be written, or executed, is named with the command that mounts it otherwise."""
    directory = node.state if path == "state_dir" else node.bin
    directory.mkdir(exist_ok=True)
    with mounted(directory, option):
        ward.mend(name, path)


def test_records_in_memory(ward: Ward, node: Node) -> None:
    """A state_dir that a boot empties is a warning; setting another one ends it."""
    node.state.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", node.state], check=True)
    try:
        assert ward.finding("state-in-memory")["remedy"] == "set state_dir to a directory on a disk"
        with TemporaryDirectory(prefix="uc-", dir="/var/tmp") as directory:
            node.settings["USERSPACE_CNI_STATE_DIR"] = directory
            assert ward.is_gone("state-in-memory")
    finally:
        subprocess.run(["umount", node.state], check=True)


@contextmanager
def mounted(directory: Path, option: str) -> Iterator[None]:
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    try:
        subprocess.run(["mount", "-o", f"remount,bind,{option}", directory], check=True)
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def test_a_dead_switch(switch: Switch, ward: Ward) -> None:
    """A killed ovs-vswitchd is an error; started again it is one no more, but told as young."""
    switch.kill_vswitchd()
    try:
        assert "restart" in ward.finding("vswitchd-dead")["remedy"]
    finally:
        switch.restart_vswitchd()
    names = {each["name"] for each in ward.findings()}
    assert names >= {"vswitchd-young"}
    assert "vswitchd-dead" not in names


def test_pods_on_the_cpu_of_a_polling_thread(options: Switch, ward: Ward, node: Node) -> None:
    """Where the kubelet lets all pods run, by the state of its CPU manager; not where it keeps them off that CPU."""
    options.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={as_mask({CPUS[-1]})}")
    node.kubelet.mkdir(exist_ok=True)
    state = node.kubelet / "cpu_manager_state"
    state.write_text(json.dumps({"policyName": "static", "defaultCpuSet": f"0-{CPUS[-1]}", "entries": {}, "checksum": 1}))
    assert "strict-cpu-reservation" in ward.finding("pmd-kubelet")["remedy"]
    given = {"uid": {"app": str(CPUS[-1])}}
    state.write_text(json.dumps({"policyName": "static", "defaultCpuSet": "0", "entries": given, "checksum": 1}))
    assert ward.finding("pmd-given-to-pod")["severity"] == "error"
    state.write_text(json.dumps({"policyName": "static", "defaultCpuSet": "0", "entries": {}, "checksum": 1}))
    assert not {"pmd-kubelet", "pmd-given-to-pod"} & {each["name"] for each in ward.findings()}


@pytest.fixture
def apart(node: Node) -> Iterator[Ward]:
    """The same in a mount namespace of its own, where nothing reserves huge pages at boot."""
    made = Path("/dev/hugepages")
    was_there = made.exists()
    script = "mount -t tmpfs none /etc/sysctl.d && echo ready && exec sleep infinity"
    with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield Ward(node, ("nsenter", "--mount", f"--target={process.pid}"))
        finally:
            process.kill()
    if not was_there and made.exists():
        made.rmdir()


def test_huge_pages_that_a_boot_would_take(apart: Ward) -> None:
    """Pages that no file reserves at the next boot are reported; the remedy writes such a file."""
    apart.mend("hugepages-not-kept")


def test_no_mount_of_huge_pages(apart: Ward) -> None:
    """Where pages are reserved and no hugetlbfs is mounted, the remedy mounts one."""
    subprocess.run([*apart.prefix, "umount", "--all", "--types", "hugetlbfs"], check=False)
    apart.mend("hugetlbfs-missing", "2 MiB")


@pytest.fixture
def contained(node: Node, place: Path) -> tuple[str, ...]:
    """What runs a command as in the agent's container: the host's root is elsewhere, and its own files say other things."""
    seen = place / "host"
    seen.mkdir()
    node.settings["USERSPACE_CNI_HOST_ROOT"] = str(seen)
    own = "mount -t tmpfs none /etc/sysctl.d && echo vm.nr_hugepages=1000000 > /etc/sysctl.d/own.conf"
    script = f'mount --rbind / "$USERSPACE_CNI_HOST_ROOT" && {own} && exec "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh")


def test_a_container(node: Node, contained: tuple[str, ...]) -> None:
    """The host's files count, not those of the container, and messages have the host's paths; its processes are seen."""
    ward = Ward(node, contained)
    done = ward.run("--json", "--seconds=0.3")
    told = json.loads(done.stdout)
    assert ("hugepages-not-kept" in {each["name"] for each in told["findings"]}) == ("hugepages-not-kept" in names_on_host(node))
    assert told["unknown"] == []
    lacking = [each["message"] for each in told["findings"] if each["name"] == "agent-lacks"]
    assert any(each.startswith(f"short_dir {node.short}: ") and "mountPropagation" in each for each in lacking), lacking
    assert f"{node.settings['USERSPACE_CNI_HOST_ROOT']}/" not in done.stdout  # without the slash it is a mount of the container
    assert told["facts"]["directories"][0]["path"] == str(node.state)


def names_on_host(node: Node) -> set[str]:
    environ = {name: value for name, value in node.environ.items() if name != "USERSPACE_CNI_HOST_ROOT"}
    return {each["name"] for each in json.loads(run_command(environ, "doctor", "--json", "--seconds=0.3").stdout)["findings"]}


def test_setup_in_a_container(node: Node, contained: tuple[str, ...]) -> None:
    """It prints what the host lacks; to run that there is refused."""
    argv = [*contained, sys.executable, "-m", "userspace_cni", "setup", "dpdk"]
    environ = {**os.environ, **node.environ}
    printed = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ)
    assert (printed.returncode, "for polling threads" in printed.stdout) == (0, True), printed
    assert node.settings["USERSPACE_CNI_HOST_ROOT"] not in printed.stdout
    applied = subprocess.run([*argv, "--apply"], capture_output=True, text=True, check=False, env=environ)
    assert (applied.returncode, "run them there" in applied.stderr) == (2, True), applied


def test_the_text(ward: Ward, node: Node) -> None:
    """Each finding has its remedy below it, the gravest first; then what is good, in a line each; the count is on stderr."""
    (node.directory / "run").mkdir(exist_ok=True)
    (node.directory / "run").chmod(0o777)
    done = ward.run()
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0] == "directories"
    assert lines[1].split()[:2] == ["error", "directory-open:"]
    assert lines[4].split() == ["do", "chmod", "o-w", f"{node.directory}/run"]
    good = [line.split()[1] for line in lines if line.startswith("  good ")]
    assert {"DPDK", "kernel", "versions"} <= set(good)
    assert re.search(r"checked this node: 1 error, ", done.stderr), done.stderr


def test_a_switch_that_is_away(bare_node: Node) -> None:
    """Without a database the switch is an error that names what to start, and its options are not judged; that ends with 3."""
    done = Ward(bare_node).run("--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)["findings"]
    assert [each["remedy"] for each in found if each["name"] == "switch-away"] == ["service openvswitch-switch start"]
    assert not [each for each in found if each["subject"] in ("DPDK", "polling threads")]

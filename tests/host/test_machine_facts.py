"""What is read of the machine for `doctor`: daemons as processes, files that reserve huge pages at boot, processors, modules."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.base.cpu_sets import as_list
from userspace_cni.base.root import HostRoot
from userspace_cni.host.machine.boot_pages import read_boot_pages
from userspace_cni.host.machine.cpu_users import InterruptBalancer, look_at_cpus
from userspace_cni.host.machine.daemon_process import DaemonProcess, look_at_daemon
from userspace_cni.host.machine.directory_states import look_at_directory
from userspace_cni.host.machine.kernel_state import read_kernel
from userspace_cni.host.machine.processors import KubeletCpus, read_processors

MIB2, GIB = 2 << 20, 1 << 30


@contextmanager
def running(*argv: str, **environ: str) -> Iterator[int]:
    with subprocess.Popen(argv, env={**os.environ, **environ}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def looked(pid: int, name: str = "ovs-vswitchd", directory: str = "/") -> DaemonProcess:
    found = wait_until(lambda: look_at_daemon(pid, name, directory), what=f"process {pid} as {name}")
    assert isinstance(found, DaemonProcess)
    return found


@pytest.fixture
def program(place: Path) -> Path:
    """A program with the name of the switch's."""
    return Path(shutil.copy("/bin/sleep", place / "ovs-vswitchd"))


def test_a_daemon_that_crashed(place: Path) -> None:
    """The count of its monitor is read, after a crash; a monitor that was started anew counts from none."""
    (place / "conf.db").unlink(missing_ok=True)
    subprocess.run(["ovsdb-tool", "create", place / "conf.db", "/usr/share/openvswitch/vswitch.ovsschema"], check=True)
    pid_file = place / "pid"

    def started() -> int:
        """The daemon's process, whose monitor is there: that says what it does a moment later, in its own title."""
        pid_file.unlink(missing_ok=True)
        argv = ["ovsdb-server", f"{place}/conf.db", "--monitor", "--detach", "--no-chdir", f"--pidfile={pid_file}"]
        subprocess.run([*argv, f"--remote=punix:{place}/db.sock", f"--unixctl={place}/ctl"], check=True)
        pid = int(pid_file.read_text())
        wait_until(lambda: looked(pid, "ovsdb-server").crashes is not None, what="the monitor's title")
        return pid

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the daemon")

    pid = started()
    assert looked(pid, "ovsdb-server").crashes == 0
    os.kill(pid, signal.SIGSEGV)
    pid = wait_until(lambda: (now := int(pid_file.read_text() or pid)) != pid and now, what="the daemon to be started anew")
    wait_until(lambda: looked(pid, "ovsdb-server").crashes == 1, what="its monitor to count the crash")
    stop(pid)
    pid = started()
    assert looked(pid, "ovsdb-server").crashes == 0
    stop(pid)


def test_a_program_that_was_replaced(program: Path) -> None:
    """A process whose file is gone runs another program than the next start would."""
    with running(str(program), "600") as pid:
        assert looked(pid).replaced is False
        program.unlink()
        assert looked(pid).replaced is True


@pytest.mark.parametrize(("propagation", "receives"), [("private", False), ("slave", True)])
def test_a_mount_namespace_that_is_told_of_mounts(program: Path, place: Path, propagation: str, receives: bool) -> None:
    """The host's mounts reach a container by mountPropagation HostToContainer (slave), and not without."""
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        subprocess.run(["mount", "--make-shared", place], check=True)
        with running("unshare", "--mount", f"--propagation={propagation}", str(program), "600") as pid:
            found = looked(pid, directory=str(place))
            assert (found.sees, found.receives) == (True, receives)
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_directory_that_a_process_does_not_see(program: Path, place: Path) -> None:
    """In a mount namespace where something else is at the path."""
    (place / "short").mkdir()
    script = f"mount -t tmpfs none {place}/short && exec {program} 600"
    with running("unshare", "--mount", "sh", "-ec", script) as pid:
        assert looked(pid, directory=f"{place}/short").sees is False


def test_no_such_daemon() -> None:
    """A process of another name is not taken for it."""
    assert look_at_daemon(os.getpid(), "ovs-vswitchd", "/") is None


def test_irqbalance(place: Path) -> None:
    """The CPUs that it spares are those of its environment, else the isolated ones."""
    program = str(shutil.copy("/bin/sleep", place / "irqbalance"))

    def seen() -> InterruptBalancer:
        found = wait_until(lambda: look_at_cpus(frozenset({0}), 0.01, (), frozenset({3})).balancer, what="irqbalance")
        assert isinstance(found, InterruptBalancer)
        return found

    for environ, spared in (({}, {3}), ({"IRQBALANCE_BANNED_CPULIST": "1-2"}, {1, 2}), ({"IRQBALANCE_BANNED_CPUS": "0,4"}, {2})):
        with running(program, "600", **environ) as pid:
            assert seen() == InterruptBalancer(pid, frozenset(spared))


def written(root: Path, files: dict[str, str]) -> HostRoot:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return HostRoot(str(root))


def test_pages_that_files_reserve(tmp_path: Path) -> None:
    """The command line first, then sysctl.d in the order of its names, then tmpfiles.d; a file hides one of its name."""
    root = written(
        tmp_path,
        {
            "proc/cmdline": "quiet hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=0:512,1:256\n",
            "etc/sysctl.d/80-pages.conf": "# pages\nvm.nr_hugepages = 100\n",
            "usr/lib/sysctl.d/80-pages.conf": "vm.nr_hugepages=900\n",
            "usr/lib/sysctl.d/10-pages.conf": "vm.nr_hugepages=800\n",
            "etc/tmpfiles.d/pages.conf": (
                "w /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages - - - - 77\n"
                "w /sys/kernel/mm/other - - - - 5\n"
            ),
        },
    )
    assert read_boot_pages(MIB2, root) == {(None, GIB): 4, (0, MIB2): 512, (1, MIB2): 77, (None, MIB2): 100}
    assert read_boot_pages(MIB2, HostRoot(str(tmp_path / "etc"))) == {}


def test_processors(tmp_path: Path) -> None:
    """Nodes, isolation, governors and the kubelet's CPU manager, from the kernel's and the kubelet's files."""
    cpu = "sys/devices/system/cpu"
    root = written(
        tmp_path,
        {
            f"{cpu}/online": "0-1\n",
            f"{cpu}/isolated": "1\n",
            "sys/fs/cgroup/cpuset.cpus.isolated": "5\n",
            f"{cpu}/nohz_full": " (null)\n",
            f"{cpu}/cpu0/topology/thread_siblings_list": "0\n",
            f"{cpu}/cpu1/cpufreq/scaling_governor": "powersave\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
            "proc/cmdline": "isolcpus=1 rcu_nocbs=1\n",
            "proc/1/status": "Name:\tinit\nCpus_allowed_list:\t0\n",
            "kubelet/cpu_manager_state": '{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"c":"1"}}}',
        },
    )
    found = read_processors("/kubelet", root)
    of_all = (found.online, found.isolated, found.nohz_full, found.rcu_nocbs, found.init)
    assert list(map(as_list, of_all)) == ["0-1", "1,5", "", "1", "0"]
    assert (found.nodes, found.governors, found.siblings) == ({0: frozenset({0, 1})}, {1: "powersave"}, {})
    assert found.kubelet == KubeletCpus("static", frozenset({0}), frozenset({1}))
    (tmp_path / "kubelet/cpu_manager_state").write_text("[]")
    assert read_processors("/kubelet", root).kubelet is None


def test_modules(tmp_path: Path) -> None:
    """A module is there, can be loaded, or is absent; without the kernel's list that is unknown."""
    root = written(
        tmp_path,
        {
            "proc/sys/kernel/osrelease": "6.1\n",
            "sys/module/veth/refcnt": "0\n",
            "lib/modules/6.1/modules.dep": "kernel/drivers/net/tun.ko.xz:\nkernel/drivers/vfio/pci/vfio-pci.ko: kernel/a.ko\n",
            "lib/modules/6.1/modules.builtin": "kernel/net/netfilter/nf_tables.ko\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        },
    )
    names = ("veth", "tun", "vfio_pci", "nf_tables", "openvswitch")
    found = read_kernel(names, root)
    assert list(found.modules.values()) == ["there", "loadable", "loadable", "there", "absent"]
    assert (found.release, found.thp, found.numa_balancing) == ("6.1", "always", None)
    shutil.rmtree(tmp_path / "lib")
    assert read_kernel(names, root).modules["tun"] == "unknown"


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    """The mount of its nearest parent counts, and its mode does not."""
    tmp_path.chmod(0o777)
    found = look_at_directory("run_dir", str(tmp_path / "a/b"))
    assert found
    assert (found.exists, found.open_to, found.read_only) == (False, "", False)
    here = look_at_directory("run_dir", str(tmp_path))
    assert here
    assert here.open_to == "all users"

"""`kubevirt doctor` on a real node: a VM's launcher pod is attached to a real switch, and then something breaks."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import away, paused_vswitchd, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.guests.vm_pods import IFNAME, SOCKET, LauncherPod, vm_network
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import CONTAINER, Node
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.vhost.front_end import FrontEndListener
from userspace_cni.pod import launcher

PORT = f"{CONTAINER[:12]}-{IFNAME}"
POD = LauncherPod()
WHERE = f"VM default/vm-1, interface {IFNAME}"


@pytest.fixture
def vm(node: Node, sandbox: str) -> Iterator[Node]:
    """A node with a launcher pod that is attached, and whose QEMU has not started."""
    POD.public(node)
    assert node.run("ADD", vm_network(node), sandbox, ifname=IFNAME, CNI_ARGS=POD.args).status == 0
    yield node
    assert node.run("DEL", vm_network(node), sandbox, ifname=IFNAME, CNI_ARGS=POD.args).status == 0
    assert node.leftovers() == {}


def told(node: Node, *arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the command, without what it says of huge pages, which other tests use meanwhile."""
    done = run_command({**node.environ, **environ}, "kubevirt", "doctor", "--json", *arguments)
    assert [line for line in done.stderr.splitlines() if " (for " not in line] == []  # on a loaded machine it takes a while
    found = json.loads(done.stdout)
    found["findings"] = [each for each in found["findings"] if each["where"] != "huge pages"]
    return done.returncode, found


def graver(found: dict[str, Any]) -> dict[str, str]:
    """The findings that are more than notes: name -> where."""
    return {each["name"]: each["where"] for each in found["findings"] if each["severity"] != "note"}


def server_path(node: Node) -> str:
    """Where the switch looks for the socket."""
    path: str = switch_of(node).interface(PORT)["options"]["vhost-server-path"]
    return path


def test_a_vm_that_is_starting(vm: Node) -> None:
    """Only QEMU's socket is missing, as in a VM that has just been attached: a note."""
    _, found = told(vm)
    assert graver(found) == {}
    [row] = found["interfaces"]
    assert (row["vm"], row["ifname"], row["network"], row["port"]) == ("default/vm-1", IFNAME, "net", PORT)
    assert (row["vhost"], row["verdict"]) == ("disconnected", "note")
    assert Path(row["socket"]) == POD.directory(vm) / SOCKET
    names = {each["name"]: each["where"] for each in found["findings"]}
    assert names == {"post-copy": "switch", "iommu": "switch", "no-listener": WHERE}


def test_a_vm_that_runs(vm: Node) -> None:
    """When a process acts as QEMU at the socket, nothing is found, and the MTU is the port's."""
    with FrontEndListener(server_path(vm)) as qemu, qemu.accept():
        wait_until(lambda: switch_of(vm).interface(PORT)["status"].get("status") == "connected", what="a connection")
        _, found = told(vm)
    assert graver(found) == {}
    [row] = found["interfaces"]
    assert (row["vhost"], row["verdict"], row["mtu"]) == ("connected", "good", 9000)


def verdict(node: Node) -> tuple[dict[str, str], str]:
    """What was found at the VM, with severities, and the verdict on it."""
    _, found = told(node)
    return {each["name"]: each["severity"] for each in found["findings"] if each["where"] == WHERE}, found["interfaces"][0][
        "verdict"
    ]


def said(node: Node) -> str:
    """The only message about the VM."""
    [message] = [str(each["message"]) for each in told(node)[1]["findings"] if each["where"] == WHERE]
    return message


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket that listens there, and accepts when the test does."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen(1)
        made.settimeout(60)
        yield made
    path.unlink(missing_ok=True)


def test_a_guest_that_is_not_up(vm: Node) -> None:
    """While QEMU has the connection and its guest no driver, as when it is paused, that is a note, and the exit code 0."""
    with listening(Path(server_path(vm))) as qemu, qemu.accept()[0]:
        assert switch_of(vm).interface(PORT)["status"]["status"] == "disconnected"
        assert verdict(vm) == ({"guest-not-up": "note"}, "note")


def test_a_qemu_that_ended(vm: Node) -> None:
    """When the connection is gone and no process listens, the same socket is a warning that names QEMU."""
    path = Path(server_path(vm))
    with listening(path) as qemu, qemu.accept()[0]:
        path.rename(path.with_suffix(".kept"))
    path.with_suffix(".kept").rename(path)
    assert verdict(vm) == ({"no-listener": "warning"}, "warning")
    assert "QEMU has ended" in said(vm)
    path.unlink()


def test_a_qemu_to_which_the_switch_has_not_connected(vm: Node) -> None:
    """A process that listens and has accepted no connection waits for the switch: a warning."""
    with listening(Path(server_path(vm))):
        assert verdict(vm) == ({"no-listener": "warning"}, "warning")
        assert "a VM that is being started waits" in said(vm)


def test_a_socket_whose_name_is_gone(vm: Node) -> None:
    """A connected VM whose socket was moved away is a warning, and also when another one is in its place."""
    path = Path(server_path(vm))
    moved = path.with_suffix(".moved")
    with FrontEndListener(str(path)) as qemu, qemu.accept():
        wait_until(lambda: switch_of(vm).interface(PORT)["status"].get("status") == "connected", what="a connection")
        path.rename(moved)
        assert verdict(vm) == ({"no-listener": "warning"}, "warning")
        assert "name is gone" in said(vm)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
        assert verdict(vm) == ({"no-listener": "warning"}, "warning")
        assert "no process listens" in said(vm)
        path.unlink()
        moved.rename(path)
        assert verdict(vm) == ({}, "good")


def test_people_are_shown_a_table(vm: Node) -> None:
    """The table has a line for the interface, and below it what was found and what to do."""
    done = run_command(vm.environ, "kubevirt", "doctor")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["VM", "IFNAME", "NETWORK", "BRIDGE", "PORT", "LINK", "VHOST", "VERDICT"]
    assert lines[1].split() == ["default/vm-1", IFNAME, "net", "br-test", PORT, "down", "disconnected", "note"]
    below = lines[lines.index(WHERE) + 1 :]
    assert below[0].split()[:2] == ["note", "no-listener:"]
    assert below[1].split()[:2] == ["do", "wait"]
    assert "1 interface of VMs checked: " in done.stderr


def test_pods_without_a_vm_are_not_judged(node: Node, sandbox: str) -> None:
    """The attachment of an ordinary pod is not looked at."""
    assert node.run("ADD", node.network(), sandbox).status == 0
    _, found = told(node)
    assert (found["checked"], found["findings"]) == (0, [])
    assert node.run("DEL", node.network(), sandbox).status == 0


def test_a_port_that_was_deleted(vm: Node) -> None:
    """A missing port is named, because QEMU waits for it; gc makes it again."""
    switch_of(vm).vsctl("del-port", PORT)
    code, found = told(vm)
    assert (code, graver(found)) == (1, {"port-down": WHERE})
    cli(vm, "gc")
    assert graver(told(vm)[1]) == {}


def test_an_mtu_that_was_changed(vm: Node) -> None:
    """An mtu_request that differs from the network's is named."""
    switch_of(vm).vsctl("set", "Interface", PORT, "mtu_request=1500")
    code, found = told(vm)
    assert (code, graver(found)) == (1, {"mtu-mismatch": WHERE})
    switch_of(vm).vsctl("set", "Interface", PORT, "mtu_request=9000")


def remedied(node: Node, name: str, severity: str = "error") -> None:
    """Exactly this finding is reported, and none after its remedy was run as written."""
    [told_of] = [each for each in told(node)[1]["findings"] if each["where"] == WHERE and each["name"] != "no-listener"]
    assert (told_of["name"], told_of["severity"]) == (name, severity)
    command, _, rest = told_of["remedy"].partition(", and run userspace-cni gc")
    if command.startswith("ovs-vsctl "):
        switch_of(node).vsctl(*shlex.split(command)[1:])
    else:
        subprocess.run(command, shell=True, check=True)
    if rest:
        cli(node, "gc")
    wait_until(lambda: graver(told(node)[1]) == {}, what="the remedy helps")


CHANGES = {
    "tag": (("set", "Port", PORT, "tag=77"), "port-changed", "error"),
    "trunks": (("set", "Port", PORT, "trunks=1,2"), "port-changed", "error"),
    "mtu_request": (("set", "Interface", PORT, "mtu_request=1500"), "mtu-mismatch", "error"),
    "a mark of the interface": (("remove", "Interface", PORT, "external_ids", "owner"), "port-changed", "warning"),
    "all marks of the interface": (("clear", "Interface", PORT, "external_ids"), "port-changed", "warning"),
    "all marks of the port": (("clear", "Port", PORT, "external_ids"), "port-changed", "warning"),
    "path": (("set", "Interface", PORT, "options:vhost-server-path=/nowhere/x"), "port-changed", "error"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_to_do_about_a_changed_port(vm: Node, case: str) -> None:
    """Each change is one finding, and its remedy puts it right."""
    command, name, severity = CHANGES[case]
    switch_of(vm).vsctl(*command)
    remedied(vm, name, severity)


@pytest.mark.parametrize("change", [("clear", "Port", PORT, "qos"), ("set", "Interface", PORT, "ingress_policing_rate=5")])
def test_what_to_do_about_a_changed_limit(node: Node, sandbox: str, change: tuple[str, ...]) -> None:
    """A limit that was changed by hand is a finding, and its remedy puts the limit back."""
    POD.public(node)
    network = vm_network(node) | {"bandwidth": {"ingressRate": 10_000_000, "egressRate": 20_000_000}}
    assert node.run("ADD", network, sandbox, ifname=IFNAME, CNI_ARGS=POD.args).status == 0
    switch_of(node).vsctl(*change)
    remedied(node, "port-changed", "warning")
    assert node.run("DEL", network, sandbox, ifname=IFNAME, CNI_ARGS=POD.args).status == 0
    assert node.leftovers() == {}


def test_what_to_do_about_a_port_on_another_bridge(vm: Node) -> None:
    """A port that another program made again on another bridge is deleted, and then gc makes it."""
    switch = switch_of(vm)
    switch.vsctl("add-br", "br-else", "--", "set", "Bridge", "br-else", "datapath_type=netdev")
    try:
        moved = ["del-port", PORT, "--", "add-port", "br-else", PORT, "--", "set", "Interface", PORT, "type=internal"]
        switch.vsctl("--no-wait", *moved)  # an internal port cannot have so long a name
        remedied(vm, "port-changed")
    finally:
        switch.vsctl("del-br", "br-else")


def test_two_vms_with_one_mac(vm: Node, sandbox: str) -> None:
    """An interface of another VM with the same MAC is named at both; the second pod of a migrating VM is not."""
    mac = switch_of(vm).interface(PORT)["external_ids"]["attached-mac"]
    network = vm_network(vm)
    for pod, rivals in ((LauncherPod(random="fghij"), 0), (LauncherPod("vm-2"), 2)):
        pod.public(vm)
        given = {"ifname": IFNAME, "container": "f00d" * 16, "CNI_ARGS": f"{pod.args};MAC={mac}"}
        assert vm.run("ADD", network, sandbox, **given).status == 0
        found = [each for each in told(vm)[1]["findings"] if each["name"] == "mac-conflict"]
        assert [each["severity"] for each in found] == ["warning"] * rivals
        assert vm.run("DEL", network, sandbox, **given).status == 0


def test_a_directory_that_was_asked_for_and_is_not_qemu_s(node: Node, sandbox: str) -> None:
    """A network that gives the directory to another user is a finding, although nothing differs from ADD."""
    POD.public(node)
    network = vm_network(node)
    network["host"]["vhost"] = {"user": "1000", "dirmode": "0700"}
    assert node.run("ADD", network, sandbox, ifname=IFNAME, CNI_ARGS=POD.args).status == 0
    assert graver(told(node)[1]) == {"no-vhost-directory": WHERE}
    assert node.run("DEL", network, sandbox, ifname=IFNAME, CNI_ARGS=POD.args).status == 0


def test_what_to_do_about_a_mount_that_follows_links(vm: Node) -> None:
    """gc does not replace an existing mount, so the remedy removes it first."""
    target = Path(server_path(vm)).parent
    subprocess.run(["mount", "-o", "remount,bind,symfollow", str(target)], check=True)
    cli(vm, "gc")
    remedied(vm, "short-mount")


def test_what_to_do_about_a_mount_of_a_former_directory(vm: Node) -> None:
    """A replaced directory is mounted again."""
    directory = POD.directory(vm)
    directory.rename(directory.with_name("former"))
    directory.mkdir()
    os.chown(directory, launcher.QEMU_ID, launcher.QEMU_ID)
    directory.chmod(0o755)
    cli(vm, "gc")
    remedied(vm, "short-mount")
    directory.with_name("former").rmdir()


@pytest.mark.parametrize(
    ("owner", "mode", "name", "severity"),
    [
        (launcher.QEMU_ID, 0o2755, "directory-changed", "warning"),
        (launcher.QEMU_ID, 0o777, "directory-changed", "warning"),
        (launcher.QEMU_ID, 0, "no-vhost-directory", "error"),
        (0, 0o2755, "no-vhost-directory", "error"),
    ],
)
def test_what_to_do_about_a_directory(vm: Node, owner: int, mode: int, name: str, severity: str) -> None:
    """Owner and mode together are one finding, whose name says whether QEMU can still write there."""
    directory = POD.directory(vm)
    os.chown(directory, owner, owner)
    directory.chmod(mode)
    remedied(vm, name, severity)


def test_a_directory_that_is_gone(vm: Node) -> None:
    """Without the directory its mount shows nothing, either; only the directory is a finding."""
    POD.directory(vm).rmdir()
    assert verdict(vm) == ({"no-vhost-directory": "error"}, "error")


def test_a_mount_that_is_gone(vm: Node) -> None:
    """Without its mount the switch has no way to the socket."""
    target = Path(server_path(vm)).parent
    subprocess.run(["umount", str(target)], check=True)
    code, found = told(vm)
    assert (code, graver(found)) == (1, {"short-mount": WHERE})
    assert decoded(vm, "gc")["actions"] == {"again-pod-mount": 1}


def test_a_mount_that_the_switch_does_not_see(vm: Node) -> None:
    """A mount that is in the mount namespace of the doctor and not in that of the switch is no way to the socket."""
    script = 'nsenter --mount=/proc/$PPID/ns/mnt umount "$0" && exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(Path(server_path(vm)).parent)]
    doctor = [sys.executable, "-m", "userspace_cni", "kubevirt", "doctor", "--json"]
    done = subprocess.run([*argv, *doctor], env=vm.environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert graver(json.loads(done.stdout))["short-mount"] == WHERE
    assert decoded(vm, "gc")["actions"] == {"again-pod-mount": 1}


def test_a_directory_of_another_user(vm: Node) -> None:
    """A directory that is not QEMU's is named: QEMU cannot make its socket."""
    directory = POD.directory(vm)
    subprocess.run(["chown", "0:0", str(directory)], check=True)
    code, found = told(vm)
    assert (code, graver(found)) == (1, {"no-vhost-directory": WHERE})
    subprocess.run(["chown", f"{launcher.QEMU_ID}:{launcher.QEMU_ID}", str(directory)], check=True)


def test_a_socket_without_a_listener(vm: Node) -> None:
    """A dead QEMU's socket, another kind of file and a missing socket are different findings."""
    path = Path(server_path(vm))
    script = "import os, socket, sys; os.chdir(sys.argv[1]); socket.socket(socket.AF_UNIX).bind(sys.argv[2])"
    subprocess.run([sys.executable, "-c", script, str(path.parent), path.name], check=True)
    code, found = told(vm)
    assert (code, graver(found)) == (1, {"no-listener": WHERE})
    path.unlink()
    path.touch()
    code, found = told(vm)
    assert (code, graver(found)) == (1, {"no-listener": WHERE})
    assert "expected a socket or nothing" in str(found["findings"])
    path.unlink()


def test_a_server_mode_port(vm: Node) -> None:
    """A port that makes the socket itself is named: a restart of the switch would end the VM's network."""
    switch_of(vm).vsctl("set", "Interface", PORT, "type=dpdkvhostuser")
    code, found = told(vm)
    assert code == 1
    assert graver(found)["server-mode"] == WHERE
    switch_of(vm).vsctl("set", "Interface", PORT, "type=dpdkvhostuserclient")
    wait_until(lambda: switch_of(vm).interface(PORT)["error"] == [], what="the port is open again")


def test_settings_of_the_switch(vm: Node) -> None:
    """A setting that a migration policy or a guest may need is a note until it is set."""
    switch = switch_of(vm)
    settings = ("other_config:vhost-postcopy-support=true", "other_config:vhost-iommu-support=true")
    switch.vsctl("set", "Open_vSwitch", ".", *settings)
    try:
        assert {each["name"] for each in told(vm)[1]["findings"]} == {"no-listener"}
    finally:
        switch.vsctl("remove", "Open_vSwitch", ".", "other_config", "vhost-postcopy-support", "--",
                     "remove", "Open_vSwitch", ".", "other_config", "vhost-iommu-support")  # fmt: skip


def test_a_switch_that_hangs_or_is_away(vm: Node) -> None:
    """A hung datapath is an error for every VM's start; an OVSDB that is away, and nothing else wrong, ends with 3."""
    with paused_vswitchd(switch_of(vm)):
        code, found = told(vm)
        assert (code, graver(found)) == (1, {"port-down": "switch"})
    done = run_command({**vm.environ, **away(vm)}, "kubevirt", "doctor", "--json")
    assert '"port-down"' in done.stdout
    assert '"verdict"' in done.stdout
    assert done.stdout.count("ports and settings of the switch could not be looked at") == 1
    assert done.returncode in (1, 3)  # 1 where huge pages are short meanwhile


def test_a_switch_that_died(vm: Node) -> None:
    """A dead ovs-vswitchd is one error, of the switch; what it last said of the VM's port is not shown."""
    with FrontEndListener(server_path(vm)) as qemu, qemu.accept():
        wait_until(lambda: switch_of(vm).interface(PORT)["status"].get("status") == "connected", what="a connection")
        switch_of(vm).kill_vswitchd()
        try:
            code, found = told(vm)
        finally:
            switch_of(vm).restart_vswitchd()
    assert (code, graver(found)) == (1, {"port-down": "switch"})
    assert [found["interfaces"][0][key] for key in ("link_state", "vhost", "verdict")] == ["unknown"] * 3


def test_a_guest_for_which_there_is_no_room(vm: Node) -> None:
    """A VM that is to be started is compared with the huge pages that are free."""
    done = run_command(vm.environ, "kubevirt", "doctor", "--guest", "900Ti", "--json")
    assert done.returncode == 1
    assert "a guest of 921600 GiB finds" in done.stdout
    assert "amount of memory" in cli(vm, "kubevirt", "doctor", "--guest", "much", code=2).stderr

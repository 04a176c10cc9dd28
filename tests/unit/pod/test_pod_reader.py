"""`python -m userspace_cni.pod` as a container runs it: what it prints, what it waits for, and what it ignores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pod.test_pod_consumers import downward_api
from tests.unit.pod.test_pod_document import entry
from userspace_cni.pod import __main__ as reader
from userspace_cni.pod import document, source

ROOT = Path(__file__).resolve().parents[3]
OLD, NEW = "a" * 64, "b" * 64
MAC = "02:00:00:aa:bb:01"

CONTAINERD = (
    "1022 1000 254:1 /var/lib/docker/volumes/{other}/_data/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{sandbox}/hostname "
    "/etc/hostname rw,relatime - ext4 /dev/vda1 rw\n"
    "1023 1000 0:50 /{other}/x /etc/hosts rw - ext4 /dev/vda1 rw\n"
)
CRIO = "900 800 0:25 /containers/storage/overlay-containers/{sandbox}/userdata/resolv.conf /etc/resolv.conf ro - tmpfs tmpfs rw\n"
KATA = "90 80 0:25 /{sandbox}-0123456789abcdef-resolv.conf /etc/resolv.conf ro - virtiofs kataShared rw\n"


class Pod:
    """A directory that kubelet mounts into a container: `annotations` behind a symlink that is swapped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "annotations"
        self._generation = 0
        self.refresh({})
        self.file.symlink_to("..data/annotations")

    def refresh(self, annotations: dict[str, str]) -> None:
        """Show other annotations, the way kubelet's atomic writer does."""
        self._generation += 1
        made = self.directory / f"..generation{self._generation}"
        made.mkdir()
        (made / "annotations").write_text(downward_api(annotations))
        link = self.directory / "..data_tmp"
        link.symlink_to(made.name)
        link.rename(self.directory / "..data")


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    """A pod that was just started: no annotations of ours yet."""
    return Pod(tmp_path)


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets what mountinfo says; at first it says nothing."""
    path = tmp_path / "mountinfo"
    path.write_text("22 1 254:1 / / rw - ext4 /dev/vda1 rw\n")
    monkeypatch.setattr(source.own_sandbox_ids, "__defaults__", (str(path),))

    def write(text: str) -> None:
        path.write_text(text)

    return write


def noted(*entries: document.Entry, **more: str) -> dict[str, str]:
    return {document.CONFIGURATION_DATA: document.render(entries), document.MAPPED_DIR: "/x/", **more}


def status(*interfaces: tuple[str, str]) -> str:
    """A network-status annotation: interface name and MAC."""
    default = {"name": "dflt", "interface": "eth0", "mac": "7e:26:fa:0c:23:2d", "default": True}
    return json.dumps([default, *({"name": "n", "interface": name, "mac": mac} for name, mac in interfaces)])


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    code = reader.main(argv)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_it_prints_one_line_of_dpdk_arguments(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """The line can be put into a command as it is."""
    pod.refresh(noted(entry("net1")))
    code, out, err = run(capsys, "--annotations", str(pod.file))
    device = f"--vdev=virtio_user0,path=/x/390cedb3dbd8-net1,server=1,mac={MAC}"
    assert (code, out, err) == (0, f"--in-memory --single-file-segments {device}\n", "")


def test_json_has_a_persons_facts_about_each_interface(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, role, path, addresses and MTU, and nothing that was not asked for."""
    pod.refresh(noted(entry("net1"), entry("net2", mode="client", queues=2)))
    code, out, _ = run(capsys, "--annotations", str(pod.file), "--json", "--interface", "net2")
    assert code == 0
    assert json.loads(out) == [
        {
            "ifname": "net2",
            "network": "dpdk-plain",
            "mode": "client",
            "path": "/x/390cedb3dbd8-net2",
            "containerId": "390cedb3dbd819176bd3acb00e8b1e0d008be22797539fd5bfda8b72880b4830",
            "queues": 2,
            "mtu": 9000,
            "mac": MAC,
            "ips": ["10.56.217.40/24", "fd00::40/64"],
            "gateways": ["10.56.217.1"],
        }
    ]


def test_files_beside_the_sockets_are_read_sorted_by_interface(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an API server the directory of the sockets has one file per interface; net10 comes after net2."""
    for name in ("net10", "net2"):
        (tmp_path / f"configData-390cedb3dbd8-{name}.json").write_text(document.render_file(entry(name)))
    (tmp_path / "390cedb3dbd8-net2").touch()
    code, out, _ = run(capsys, "--dir", str(tmp_path))
    assert code == 0
    assert [word.partition("path=")[2].partition(",")[0] for word in out.split()[2:]] == [
        f"{tmp_path}/390cedb3dbd8-net2",
        f"{tmp_path}/390cedb3dbd8-net10",
    ]


def test_nothing_found_says_where_it_looked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exit code 1, nothing on stdout, and every place with its problem on stderr."""
    code, out, err = run(capsys, "--annotations", str(tmp_path / "none"), "--dir", str(tmp_path))
    assert (code, out) == (1, "")
    assert f"{tmp_path}/none: No such file" in err
    assert f"{tmp_path}: nothing about vhost-user interfaces yet" in err
    assert "--wait" in err


@pytest.mark.parametrize("argv", [["--wait", "0"], ["--wait", "soon"], ["--expect", "0"], ["--nonsense"], ["positional"]])
def test_wrong_usage_is_code_2(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be meant is answered with the usage."""
    with pytest.raises(SystemExit) as stopped:
        reader.main(argv)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_damaged_annotation_is_named_and_is_no_traceback(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign text under our key is reported as such."""
    pod.refresh({document.CONFIGURATION_DATA: "{"})
    code, out, err = run(capsys, "--annotations", str(pod.file))
    assert (code, out) == (1, "")
    assert "not JSON" in err


def test_what_dpdk_can_not_be_given_is_an_error_and_json_still_shows_it(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """No arguments are printed that DPDK would misread."""
    pod.refresh(noted(entry(socketfile="a,b")))
    code, out, err = run(capsys, "--annotations", str(pod.file))
    assert (code, out) == (1, "")
    assert "interface net1" in err
    assert run(capsys, "--annotations", str(pod.file), "--json")[0] == 0


def later(seconds: float, action: Callable[[], None]) -> threading.Timer:
    """Do `action` while the reader waits."""
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def test_wait_sees_the_file_swapped_in(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """The kubelet shows the annotations only after the container has started; the reader waits for that."""
    timer = later(0.3, lambda: pod.refresh(noted(entry("net1"))))
    code, out, err = run(capsys, "--annotations", str(pod.file), "--wait", "10")
    timer.join()
    assert code == 0
    assert "net1" in out
    missing, found = err.splitlines()
    assert missing.startswith(f"userspace_cni.pod: waiting: {pod.file}: nothing about vhost-user interfaces yet, no annotation ")
    assert missing.endswith("Z, up to 10 s)")
    assert found.startswith("userspace_cni.pod: found net1 (after ")


def test_wait_ends_in_time_and_says_so(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod without an interface gets an answer, not a hang."""
    started = time.monotonic()
    code, out, err = run(capsys, "--annotations", str(pod.file), "--wait", "0.3")
    assert (code, out) == (1, "")
    assert "after 0.3 s" in err
    assert time.monotonic() - started >= 0.3


def test_what_is_waited_for_is_told_as_it_changes(pod: Pod) -> None:
    """Each thing that is missing is named on stderr when it is its turn: the file, the annotation, a status."""
    (pod.directory / "..data").unlink()
    command = [sys.executable, "-m", "userspace_cni.pod", "--annotations", str(pod.file), "--wait", "60"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr
        assert "No such file" in waiting.stderr.readline()
        pod.refresh({"other": "a\nforged: line\x1b[31m"})
        assert f"no annotation {document.CONFIGURATION_DATA}" in waiting.stderr.readline()
        pod.refresh({**noted(entry("net1")), document.NETWORKS: "net"})
        assert "no k8s.v1.cni.cncf.io/network-status is there yet" in waiting.stderr.readline()
        pod.refresh(noted(entry("net1")))
        assert "found net1" in waiting.stderr.readline()
        out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (0, "")
    assert "path=" in out


def test_expect_waits_for_so_many_interfaces(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """A file from between two ADDs is not enough."""
    pod.refresh(noted(entry("net1")))
    timer = later(0.3, lambda: pod.refresh(noted(entry("net1"), entry("net2"))))
    code, out, _ = run(capsys, "--annotations", str(pod.file), "--wait", "10", "--expect", "2")
    timer.join()
    assert code == 0
    assert "virtio_user1" in out
    assert run(capsys, "--annotations", str(pod.file), "--expect", "3")[2].count("2 of 3 interfaces") == 1


def test_an_interface_by_name_is_waited_for(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """The name that was asked for counts, not that there is some interface."""
    pod.refresh(noted(entry("net1")))
    timer = later(0.3, lambda: pod.refresh(noted(entry("net1"), entry("net2"))))
    code, out, _ = run(capsys, "--annotations", str(pod.file), "--wait", "10", "--interface", "net2")
    timer.join()
    assert code == 0
    assert "virtio_user0" in out
    assert "net1" not in out


@pytest.mark.parametrize("mounts", [CONTAINERD, CRIO], ids=["containerd", "cri-o"])
def test_entries_of_the_former_sandbox_are_not_believed(
    pod: Pod, sandbox: Callable[[str], None], capsys: pytest.CaptureFixture[str], mounts: str
) -> None:
    """In a new sandbox the file shows the old entries first; mountinfo tells which are its own."""
    sandbox(mounts.format(sandbox=NEW, other="c" * 64))
    pod.refresh(noted(entry("net1", OLD)))
    assert "another sandbox (aaaaaaaaaaaa)" in run(capsys, "--annotations", str(pod.file))[2]
    timer = later(0.3, lambda: pod.refresh(noted(entry("net1", NEW), entry("net2", OLD))))
    code, out, _ = run(capsys, "--annotations", str(pod.file), "--wait", "10")
    timer.join()
    assert code == 0
    assert f"{NEW[:12]}-net1" in out
    assert OLD[:12] not in out


def test_a_person_can_overrule_the_sandbox(pod: Pod, sandbox: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """--any-sandbox and --container-id choose otherwise."""
    sandbox(CRIO.format(sandbox=NEW))
    pod.refresh(noted(entry("net1", OLD)))
    assert run(capsys, "--annotations", str(pod.file), "--any-sandbox")[0] == 0
    assert run(capsys, "--annotations", str(pod.file), "--container-id", OLD[:12])[0] == 0
    assert run(capsys, "--annotations", str(pod.file), "--container-id", "c")[0] == 1


def test_without_knowledge_of_the_sandbox_all_entries_count(
    pod: Pod, sandbox: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a VM, under an unknown runtime, or with a container ID that no runtime made, nothing is thrown away."""
    pod.refresh(noted(entry("net1", OLD)))
    sandbox(KATA.format(sandbox=NEW))
    assert run(capsys, "--annotations", str(pod.file))[0] == 0
    sandbox(CRIO.format(sandbox=NEW))
    pod.refresh(noted(entry("net1", "cnitool-0123456789abcdef0123")))
    assert run(capsys, "--annotations", str(pod.file))[0] == 0
    assert source.own_sandbox_ids("/nonexistent") == frozenset()


def test_wait_holds_until_multus_has_reported(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """With networks asked for and no status yet, more interfaces may come; --expect and no --wait do not hold."""
    asked = {document.NETWORKS: "a,b"}
    pod.refresh(noted(entry("net1"), **asked))
    args = ("--annotations", str(pod.file))
    assert "no k8s.v1.cni.cncf.io/network-status is there yet" in run(capsys, *args, "--wait", "0.1")[2]
    assert run(capsys, *args, "--wait", "0.1", "--expect", "1")[0] == 0
    assert run(capsys, *args)[0] == 0
    pod.refresh(noted(entry("net1"), **asked, **{document.NETWORK_STATUS: status(("net1", MAC.upper()))}))
    assert run(capsys, *args, "--wait", "0.1")[0] == 0


def test_wait_holds_while_the_status_contradicts(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """An interface that Multus reports with another MAC is of another time than the entry."""
    pod.refresh(noted(entry("net1"), **{document.NETWORK_STATUS: status(("net1", "02:00:00:00:00:99"))}))
    assert "another MAC" in run(capsys, "--annotations", str(pod.file), "--wait", "0.1")[2]


@pytest.mark.parametrize("text", ["", "{", "7", "[1]", '[{"interface": 7}]', "[" * 100_000])
def test_a_status_that_can_not_be_read_says_nothing(pod: Pod, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A foreign annotation cannot keep an application from starting."""
    pod.refresh(noted(entry("net1"), **{document.NETWORK_STATUS: text}))
    assert run(capsys, "--annotations", str(pod.file), "--wait", "0.1")[0] == 0


def test_the_lines_of_others_do_not_disturb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Among the lines that Multus, kubectl (JSON in JSON, with a newline at its end) and kubelet add, ours are found."""
    others = (
        'k8s.v1.cni.cncf.io/network-status="[{\\n    \\"name\\": \\"dflt\\",\\n    \\"interface\\": \\"eth0\\"\\n}]"\n'
        'kubectl.kubernetes.io/last-applied-configuration="{\\"annotations\\":{\\"a\\":\\"[{\\\\\\"b\\\\\\":1}]\\"}}\\n"\n'
        'kubernetes.io/config.seen="2026-11-21T03:04:34.118949554Z"\n'
    )
    path = tmp_path / "annotations"
    path.write_text(others + downward_api(noted(entry("net1"))))
    assert run(capsys, "--annotations", str(path))[0] == 0


def python(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run an interpreter that finds modules in `cwd` only."""
    command = [sys.executable, "-S", "-W", "error", *argv]
    env = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, check=False, cwd=cwd, env=env, capture_output=True, text=True)


def test_it_runs_as_a_module_and_as_a_copied_directory(pod: Pod, tmp_path: Path) -> None:
    """Without site-packages, and under another name in an image, it prints the same."""
    pod.refresh(noted(entry("net1")))
    args = ("--annotations", str(pod.file))
    module = python("-m", "userspace_cni.pod", *args, cwd=ROOT)
    shutil.copytree(ROOT / "userspace_cni" / "pod", tmp_path / "image" / "vhostuser")
    copied = python("-m", "vhostuser", *args, cwd=tmp_path / "image")
    assert module.returncode == copied.returncode == 0, module.stderr + copied.stderr
    assert module.stdout == copied.stdout != ""


def test_it_loads_nothing_else_of_the_project() -> None:
    """An application's image needs the one directory, and its start is not slowed by the rest."""
    code = "import sys, userspace_cni.pod.__main__; print(*[m for m in sys.modules if m.startswith('userspace_cni')])"
    loaded = python("-c", code, cwd=ROOT).stdout.split()
    assert {name for name in loaded if not name.startswith("userspace_cni.pod")} == {"userspace_cni"}


def test_another_process_can_swap_the_file_under_a_waiting_one(pod: Pod) -> None:
    """The command waits in its own process and prints once the entries are there."""
    command = [sys.executable, "-m", "userspace_cni.pod", "--annotations", str(pod.file), "--wait", "20", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as waiting:
        pod.refresh(noted(entry("net1")))
        out: Any = json.loads(waiting.communicate(timeout=60)[0])
    assert waiting.returncode == 0
    assert out[0]["ifname"] == "net1"


LISTENER = (
    "import socket, sys; made = socket.socket(socket.AF_UNIX); made.bind(sys.argv[1]); made.listen(); print(flush=True); "
    "sys.stdin.read()"
)


@contextmanager
def application(path: Path) -> Iterator[None]:
    """One that listens there, in another process; killed at the end."""
    argv = [sys.executable, "-c", LISTENER, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield
        finally:
            process.kill()


def told(pod: Pod, mode: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The reader's stderr about an interface whose socket is `c0ffee-net1` in the pod's directory."""
    noted_there = {document.MAPPED_DIR: f"{pod.directory}/"}
    pod.refresh({**noted(entry(mode=mode, socketfile="c0ffee-net1")), **noted_there})
    code, _, err = run(capsys, "--annotations", str(pod.file))
    assert code == 0
    return err


def test_the_socket_of_a_killed_application_is_removed(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """The application that starts next can bind; one that lives is not touched, and neither is a neighbour."""
    path, neighbour = pod.directory / "c0ffee-net1", pod.directory / "c0ffee-net2"
    assert told(pod, "server", capsys) == ""
    with application(path):
        assert told(pod, "server", capsys) == ""
        assert path.is_socket()
    with application(neighbour):
        pass
    assert f"{path}: removed" in told(pod, "server", capsys)
    assert not path.exists()
    assert neighbour.is_socket()


def test_sockets_of_another_sandbox_stay(pod: Pod, sandbox: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """Of interfaces that a person lets count although they are another sandbox's, no socket is removed; ours is."""
    sandbox(CRIO.format(sandbox=NEW))
    mine, other = entry("net1", NEW, mode="server", socketfile="mine"), entry("net2", OLD, mode="server", socketfile="other")
    pod.refresh({**noted(mine, other), document.MAPPED_DIR: f"{pod.directory}/"})
    for name in ("mine", "other"):
        with application(pod.directory / name):
            pass
    code, _, err = run(capsys, "--annotations", str(pod.file), "--any-sandbox")
    assert code == 0
    assert not (pod.directory / "mine").exists()
    assert (pod.directory / "other").is_socket()
    assert err.count("removed") == 1


def test_each_interface_is_freed(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """The obstacle at one name is reported, the other names are freed, and the arguments are printed."""
    entries = [entry(f"net{number}", mode="server", socketfile=f"s{number}") for number in (1, 2, 3)]
    pod.refresh({**noted(*entries), document.MAPPED_DIR: f"{pod.directory}/"})
    (pod.directory / "s1").touch()
    for name in ("s2", "s3"):
        with application(pod.directory / name):
            pass
    code, out, err = run(capsys, "--annotations", str(pod.file))
    assert (code, out.count("--vdev")) == (0, 3)
    assert "s1: what is there is not a socket" in err
    assert (err.count("removed"), sorted(each.name for each in pod.directory.glob("s?"))) == (2, ["s1"])


def test_a_joined_device_is_told_once(tmp_path: Path) -> None:
    """Of a claim's device that a network has joined the network's file counts, which has addresses; of others their own."""
    for number, container, ifname in ((0, "_u1", "net0"), (0, NEW, "net1"), (1, "_u1", "net1")):
        below = tmp_path / f"u1-{number}"
        below.mkdir(exist_ok=True)
        told = entry(ifname, container)
        told["config"]["vhost"]["socketfile"] = "sock"
        (below / f"configData-{container[:12]}-{ifname}.json").write_text(document.render_file(told))
    looked = source.Sources((), (str(tmp_path),)).look()
    assert sorted(each.path for each in looked.interfaces) == [f"{tmp_path}/u1-{number}/sock" for number in range(2)]
    assert [each.ifname for each in looked.interfaces] == ["net1", "net1"]

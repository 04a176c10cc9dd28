"""What kubelet, containerd and Multus sent, replayed byte for byte; only the sandbox and CNI_PATH are replaced."""

from __future__ import annotations

import fcntl
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.pods import MAPPED_DIR
from tests.lab.node.links import addresses, guards, host_ends, links
from tests.lab.node.node import PLUGINS, Node
from tests.lab.runtimes.runtime import Call, Recording, recordings

RECORDINGS = Path(__file__).parents[1] / "recordings"
MULTUS = "multus-4.3-thin"
CONTAINERD = "containerd-1.6-kubelet-1.36"
DEVICE_INFO_DIR = "/var/run/k8s.cni.cncf.io/devinfo"
DEVICE_INFO = Path(f"{DEVICE_INFO_DIR}/cni").resolve()
LEASES = Path("/var/lib/cni/networks")
"""host-local's default, which the recorded configurations use."""
_TURN = Path("/run/lock/userspace-cni-recordings")


@contextmanager
def turn() -> Iterator[None]:
    """Wait until no other test on this machine replays: the paths of a recording are the machine's own, on lanes, too."""
    with _TURN.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def moved(path: Path, to: Path) -> Iterator[None]:
    """What is written below `path` goes to `to`; directories that were made for that are removed afterwards."""
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    path.mkdir(parents=True, exist_ok=True)
    to.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", str(to), str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)
        for each in missing:
            with suppress(OSError):  # a runtime of another test has something in it by now
                each.rmdir()


class Replay:
    """The calls of one recording against this node."""

    def __init__(self, node: Node, netns: str, name: str) -> None:
        self.node, self.netns = node, netns
        calls = list(recordings(RECORDINGS / f"{name}.jsonl"))
        self.adds = [each for each in calls if each.env["CNI_COMMAND"] == "ADD"]
        self.dels = [each for each in calls if each.env["CNI_COMMAND"] == "DEL"]
        args = dict(item.split("=") for item in calls[0].env["CNI_ARGS"].split(";"))
        self.volume = node.empty_dir(args["K8S_POD_UID"])
        self.cid12 = calls[0].env["CNI_CONTAINERID"][:12]

    def call(self, recording: Recording, stdin: bytes | None = None, **environ: str) -> Call:
        """Make one recorded call, with its own bytes and variables unless others are given."""
        here = {"CNI_NETNS": self.netns, "CNI_PATH": f"{self.node.bin}:{PLUGINS}"}
        command = recording.env["CNI_COMMAND"]
        environment = {**self.node.variables(command), **recording.env, **here, **environ}
        return self.node.called(command, environment, recording.stdin if stdin is None else stdin)

    def add_all(self) -> dict[str, dict[str, Any]]:
        """Make every ADD as it was sent, and return the results by interface."""
        return {each.env["CNI_IFNAME"]: succeeded(self.call(each)) for each in self.adds}

    def leftovers(self) -> dict[str, list[str]]:
        """What is left, device-info files included, without the directories of this test's own mounts."""
        found = self.node.leftovers()
        files = [path.name for path in DEVICE_INFO.glob("*")]
        return found | ({"device info": files} if files else {})


@pytest.fixture
def replay(node: Node, sandbox: str) -> Iterator[Callable[[str], Replay]]:
    """Makes a replay of a recording, whose absolute paths lead into this test's node."""
    node.settings["USERSPACE_CNI_DEVICE_INFO_DIR"] = DEVICE_INFO_DIR
    with ExitStack() as stack:
        stack.enter_context(turn())
        stack.enter_context(moved(LEASES, node.ipam_dir))
        stack.enter_context(moved(DEVICE_INFO, node.device_info))
        yield lambda name: Replay(node, sandbox, name)


def test_multus_attaches_five_interfaces(replay: Callable[[str], Replay]) -> None:
    """Each ADD answers in its own version with what was asked for.

    The DELs in reverse order print nothing, and nothing is left.
    """
    played = replay(MULTUS)
    results = played.add_all()
    for ifname, result in results.items():
        [interface] = result["interfaces"]
        assert (interface["name"], interface["sandbox"]) == (ifname, played.netns)
        assert switch_of(played.node).interface(f"{played.cid12}-{ifname}")["external_ids"]["attached-mac"] == interface["mac"]
    assert {ifname: result["cniVersion"] for ifname, result in results.items()} == {
        **dict.fromkeys(("net1", "net2", "fast1", "net4"), "1.0.0"),
        "net5": "1.1.0",
    }
    assert results["net1"]["interfaces"][0]["mac"] == "02:00:00:aa:bb:01"
    assert results["net1"]["ips"] == [{"address": "10.56.217.40/24", "gateway": "10.56.217.1", "interface": 0}]
    assert switch_of(played.node).port(f"{played.cid12}-net1")["tag"] == 100
    assert results["net5"]["interfaces"][0]["mtu"] == 9000
    assert switch_of(played.node).interface(f"{played.cid12}-net5")["mtu_request"] == 9000
    assert switch_of(played.node).bridges() == ["br-dpdk"]
    for number, each in enumerate(played.dels, 1):
        succeeded(played.call(each))
        assert len(played.leftovers().get("records", [])) == len(played.dels) - number
    assert played.leftovers() == {}


def test_device_info_as_multus_expects_it(replay: Callable[[str], Replay]) -> None:
    """The file that Multus named is there after ADD, in the form that it copies into network-status, and gone after DEL."""
    played = replay(MULTUS)
    played.add_all()
    status = json.loads((RECORDINGS / "network-status.json").read_text())
    for ifname in ("net2", "fast1"):
        [file] = DEVICE_INFO.glob(f"default-dpdk-device-*_{ifname}")
        [recorded] = [entry["device-info"] for entry in status if entry["interface"] == ifname]
        path = f"{MAPPED_DIR}/{played.cid12}-{ifname}"
        assert json.loads(file.read_text()) == {**recorded, "vhost-user": {**recorded["vhost-user"], "path": path}}
    for each in played.dels:
        succeeded(played.call(each))
    assert played.leftovers() == {}


def stripped(recording: Recording) -> bytes:
    """As Multus thin sends a cluster network's DEL from a conflist file: `type` and `ipam.type`, with name and version."""
    config = json.loads(recording.stdin)
    kept = {key: config[key] for key in ("cniVersion", "name", "type")}
    return json.dumps(kept | ({"ipam": {"type": config["ipam"]["type"]}} if "ipam" in config else {})).encode()


def without_previous(recording: Recording) -> bytes:
    """As it is sent when the runtime has lost its cache."""
    config = json.loads(recording.stdin)
    del config["prevResult"]
    return json.dumps(config).encode()


def whole(recording: Recording) -> bytes:
    return recording.stdin


@pytest.mark.parametrize("name", [MULTUS, CONTAINERD])
@pytest.mark.parametrize(
    ("stdin", "netns"),
    [(whole, "gone"), (stripped, "given"), (stripped, "empty"), (without_previous, "empty"), (without_previous, "gone")],
)
def test_del_in_all_its_forms(
    replay: Callable[[str], Replay], name: str, stdin: Callable[[Recording], bytes], netns: str
) -> None:
    """DEL removes everything, whatever part of configuration, result or sandbox the caller has lost."""
    played = replay(name)
    played.add_all()
    where = {"given": played.netns, "empty": "", "gone": f"{played.netns}-gone"}[netns]
    for each in played.dels:
        succeeded(played.call(each, stdin(each), CNI_NETNS=where))
    assert played.leftovers() == {}


def test_three_dels_of_containerd(replay: Callable[[str], Replay]) -> None:
    """A Stop with everything, then a second Stop and a Remove with an empty
    CNI_NETNS and no prevResult: all succeed and print nothing.
    """
    played = replay(CONTAINERD)
    [result] = played.add_all().values()
    assert result["ips"][0]["address"] == "10.57.0.2/24"
    [recorded] = played.dels
    succeeded(played.call(recorded))
    assert played.leftovers() == {}
    for _ in range(2):
        succeeded(played.call(recorded, without_previous(recorded), CNI_NETNS=""))
    assert played.leftovers() == {}


def test_del_right_after_an_add_that_failed(replay: Callable[[str], Replay]) -> None:
    """containerd sends a DEL within 30 ms of a failed ADD, with CNI_NETNS and without prevResult: it succeeds."""
    played = replay(CONTAINERD)
    [added], [deleted] = played.adds, played.dels
    away = {"USERSPACE_CNI_OVSDB": f"unix:{played.node.directory}/no.sock"}
    refused(played.call(added, None, **away), 11, "OVSDB")
    succeeded(played.call(deleted, without_previous(deleted), **away))
    succeeded(played.call(deleted, without_previous(deleted), CNI_NETNS=""))
    assert played.leftovers() == {}


def ordinary(recording: Recording, result: Mapping[str, Any] | None = None) -> bytes:
    """As it would have been sent for a network of kernel links; `result` is what the ADD had answered."""
    config = json.loads(recording.stdin)
    config.pop("container", None)
    config["host"] = {key: value for key, value in config["host"].items() if key != "vhost"} | {"iftype": "veth"}
    return json.dumps(config | ({"prevResult": result} if result else {})).encode()


def checking(recording: Recording) -> Recording:
    """The CHECK that a caller makes with the variables of this ADD."""
    return Recording({**recording.env, "CNI_COMMAND": "CHECK"}, recording.stdin)


@pytest.mark.parametrize(("name", "address"), [(MULTUS, "10.56.217.40/24"), (CONTAINERD, "10.57.0.2/24")])
def test_networks_of_kernel_links(replay: Callable[[str], Replay], name: str, address: str) -> None:
    """The same callers with `iftype: veth`: ADD answers as asked, CHECK
    passes, and after the DELs nothing is left on either side.
    """
    played = replay(name)
    switch = switch_of(played.node)
    results = {each.env["CNI_IFNAME"]: succeeded(played.call(each, ordinary(each))) for each in played.adds}
    seen = links(played.netns)
    for ifname, result in results.items():
        host, inside = result["interfaces"]
        assert (inside["name"], inside["sandbox"], seen[ifname]["address"]) == (ifname, played.netns, inside["mac"])
        assert (seen[ifname]["mtu"], switch.interface(host["name"])["mtu"]) == (
            (9000, 9000) if ifname == "net5" else (1500, 1500)
        )
    assert (
        guards(switch.netns)
        == sorted(host_ends(switch.netns))
        == sorted(each["interfaces"][0]["name"] for each in results.values())
    )
    first = next(iter(results))
    assert addresses(played.netns, first) == [address] == [each["address"] for each in results[first]["ips"]]
    if name == MULTUS:
        assert seen["net1"]["address"] == "02:00:00:aa:bb:01"
        assert switch.port(results["net1"]["interfaces"][0]["name"])["tag"] == 100
    for each in played.adds:
        succeeded(played.call(checking(each), ordinary(each, results[each.env["CNI_IFNAME"]])))
    for each in played.dels:
        succeeded(played.call(each, ordinary(each, results[each.env["CNI_IFNAME"]])))
    succeeded(played.call(played.dels[0], ordinary(played.dels[0]), CNI_NETNS=""))
    assert played.leftovers() == {}
    assert (links(played.netns), host_ends(switch.netns), guards(switch.netns)) == ({}, {}, [])

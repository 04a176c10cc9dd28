"""The agent's image as it is deployed: built from its Dockerfile, run by the manifest, checked by the manifest's probes.

Programs in the image see only its own files, none of the checkout and no package of the tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cni.spec import succeeded, switch_of
from tests.lab.kube.daemonset import DaemonSet
from tests.lab.node.agent import spooled
from tests.lab.node.host_tree import TreeNode, host_tree
from tests.lab.node.links import addresses, guards, host_ends, links
from tests.lab.node.node import CONTAINER, clean, mounts_below
from tests.lab.runtimes import agent_image, image_base, image_inside
from tests.lab.runtimes.agent_image import IMAGE
from tests.lab.runtimes.built_image import BUILD
from tests.lab.runtimes.containerd_host import remove_cgroup
from tests.lab.runtimes.podman import Storage, own_storage
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

pytestmark = pytest.mark.timeout(900)  # the first run on a machine makes a Debian
START_S = 60.0
END_S = 60.0
RUNS = 12
ABOVE_THE_BASE = 200_000_000
"""How many bytes the image may be larger than its base, because each node pulls them."""
CGROUP = "/userspace-cni-image"
UID = "7d1a2c00-0000-4000-8000-000000000001"
PORT = f"{CONTAINER[:12]}-net1"


@pytest.fixture(scope="module")
def images(machine_as_it_was: None) -> Iterator[Storage]:
    archive = agent_image.archive()
    with own_storage() as (podman, _):
        podman.call("load", f"--input={archive}")
        yield podman


class Pod:
    """The DaemonSet's pod on the host of `node`."""

    def __init__(self, podman: Storage, node: TreeNode) -> None:
        self.node = node
        self.manifest = DaemonSet(node.tree)
        self.cgroup = f"/{node.directory.parent.name}"
        self._podman = podman
        self._agent = ""

    def install(self) -> str:
        """Run the first container to its end; its output."""
        options = ["--rm", f"--cgroup-parent={self.cgroup}"]
        return self._podman.call("run", *options, *self.manifest.arguments(self.manifest.install, IMAGE))

    def start(self) -> None:
        options = ["--detach", f"--cgroup-parent={self.cgroup}"]
        self._agent = self._podman.call("run", *options, *self.manifest.arguments(self.manifest.agent, IMAGE)).strip()

    def probe(self, kind: str) -> tuple[int, list[str]]:
        """The answer to the kubelet's probe: status, and the problems; 0 while nothing listens."""
        client = HTTPConnection("127.0.0.1", self.node.ports[1], timeout=60)
        with closing(client):
            try:
                client.request("GET", self.manifest.probe(kind))
            except ConnectionRefusedError:
                return 0, []
            answer = client.getresponse()
            return answer.status, json.load(answer)["problems"]

    def await_start(self) -> None:
        """Repeat the startup probe until it succeeds."""
        wait_until(lambda: self.probe("startupProbe")[0] == 200, START_S, "the agent to serve")

    def stop(self) -> int:
        """End the agent as the kubelet does, and remove its container; its exit code. It must end by itself.

        (`podman stop` would signal all of the container's processes at once, because they have the host's IDs.)
        """
        self._podman.call("kill", "--signal=TERM", self._agent)
        code = int(self._podman.call("wait", self._agent, seconds=END_S))
        self._podman.call("rm", "--force", "--time=0", self._agent)
        return code

    def run(self, *command: str) -> str:
        """Output of a command in the agent's container."""
        return self._podman.call("exec", self._agent, *command)

    @property
    def log(self) -> str:
        done = self._podman.attempt("logs", self._agent)
        return done.stdout + done.stderr


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the block took."""
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.2f} s")


@pytest.fixture
def pod(images: Storage, switch: Switch) -> Iterator[Pod]:
    """The pod's agent, which serves, and the plugin that the pod has installed."""
    with TemporaryDirectory(prefix="uc-") as directory, host_tree(switch, Path(directory)) as node, clean(node):
        made = Pod(images, node)
        try:
            with timed("install"):
                assert "/opt/cni/bin/userspace" in made.install()
            with timed("start of the agent, by its startup probe"):
                made.start()
                made.await_start()
            yield made
        finally:
            images.call("rm", "--all", "--force", "--time=0")
            remove_cgroup(made.cgroup)


@pytest.fixture
def late_sandbox(pod: Pod) -> Iterator[str]:
    """A network namespace made after the agent's container, as the runtime's are."""
    with netns(below=pod.node.directory) as path:
        yield path


def test_what_is_in_the_image(images: Storage) -> None:
    """It is small, and has what any module imports and any command needs; its bytecode depends on no time."""
    size, base = int(images.call("image", "inspect", "--format={{.Size}}", IMAGE)), image_base.archive().stat().st_size
    print(f"image: {(size - base) / 1e6:.0f} MB above the base of {base / 1e6:.0f} MB")
    assert size - base < ABOVE_THE_BASE
    python = ["--rm", "--network=none", "--entrypoint=/opt/userspace-cni/bin/python", IMAGE]
    found = json.loads(images.call("run", f"--cgroup-parent={CGROUP}", *python, "-c", Path(image_inside.__file__).read_text()))
    remove_cgroup(CGROUP)
    assert (found["missing"], found["by_time"]) == ([], [])
    assert found["modules"] > 100
    assert "userspace-cni kubevirt doctor" in found["commands"]


def test_which_build_it_is(images: Storage) -> None:
    """Its labels and its program say the same version and commit; it has neither a compiler nor pip nor git."""
    labels = json.loads(images.call("image", "inspect", "--format={{json .Labels}}", IMAGE))
    assert {
        name.removeprefix("org.opencontainers.image."): value for name, value in labels.items() if "opencontainers" in name
    } == {
        "title": "userspace-cni",
        "version": BUILD.version,
        "licenses": "Apache-2.0",
        "revision": BUILD.commit,
        "created": BUILD.committed,
    }
    options = ["--rm", "--network=none", f"--cgroup-parent={CGROUP}"]
    told = json.loads(images.call("run", *options, IMAGE, "--version", "--json"))
    programs = "for each in cc gcc musl-gcc pip git; do if command -v $each; then exit 1; fi; done"
    images.call("run", *options, "--entrypoint=/bin/sh", IMAGE, "-c", programs)
    remove_cgroup(CGROUP)
    assert (told["version"], told["commit"], told["committed"]) == (BUILD.version, BUILD.commit, BUILD.committed)


def test_the_manifest_is_enough(pod: Pod) -> None:
    """With the manifest the agent lacks nothing, is ready after its start, and the programs in the image run."""
    assert pod.probe("readinessProbe") == (200, [])
    assert [line for line in pod.log.splitlines() if "lacks" in line and not _hidden(line)] == []
    assert (pod.node.tree / "opt/cni/bin/userspace").read_bytes().startswith(b"\x7fELF")
    assert json.loads(pod.run("userspace-cni", "list", "--json")) == []
    assert "doctor" in pod.run("userspace-cni", "kubevirt", "--help")
    assert "--expect" in pod.run("/opt/userspace-cni/bin/python", "-m", "userspace_cni.pod", "--help")


def test_probes(pod: Pod) -> None:
    """Each of the manifest's probes succeeds, however often it is repeated; its time is printed."""
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        began = time.monotonic()
        assert [pod.probe(kind) for _ in range(RUNS)] == [(200, [])] * RUNS
        print(f"{kind}: {(time.monotonic() - began) / RUNS * 1000:.0f} ms")


def test_attach(pod: Pod, late_sandbox: str) -> None:
    """A pod made later is attached and detached through the installed binary; records hold the host's own paths."""
    node = pod.node
    node.empty_dir(UID)
    network = node.network("1.0.0", ipam=node.host_local())
    result = succeeded(node.run("ADD", network, late_sandbox, CNI_ARGS=f"IgnoreUnknown=1;K8S_POD_UID={UID}"))
    assert result["ips"][0]["address"].startswith("10.56.0.")
    row = switch_of(node).interface(PORT)
    assert (row["error"], row["options"]["vhost-server-path"]) == ([], f"{node.short}/{UID}/{PORT}")
    assert mounts_below(node.short) == [f"{node.short}/{UID}"]
    [record] = (node.state / "attachments").iterdir()
    assert "/host/" not in record.read_text()
    assert PORT in pod.run("userspace-cni", "list", "--json")
    succeeded(node.run("DEL", network, late_sandbox))
    assert node.leftovers() == {}


def test_an_ordinary_pod(pod: Pod, late_sandbox: str) -> None:
    """A pod with a veth is attached by the agent in its image, with address, limits and guard, and leaves nothing."""
    node = pod.node
    host = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    network = node.network("1.0.0", host=host, ipam=node.host_local(), bandwidth={"ingressRate": 10**7, "egressRate": 10**7})
    result = succeeded(node.run("ADD", network, late_sandbox, ifname="eth0"))
    place, [end, inner] = switch_of(node).netns, result["interfaces"]
    assert addresses(late_sandbox, "eth0") == [result["ips"][0]["address"]]
    assert (links(late_sandbox)["eth0"]["address"], guards(place)) == (inner["mac"], [end["name"]])
    succeeded(node.run("CHECK", {**network, "prevResult": result}, late_sandbox, ifname="eth0"))
    assert "1 of 1 guarded" in pod.run("userspace-cni", "status")
    succeeded(node.run("DEL", network, late_sandbox, ifname="eth0"))
    assert (node.leftovers(), guards(place), host_ends(place)) == ({}, [], {})


def test_rollout(pod: Pod, late_sandbox: str) -> None:
    """When a new agent replaces the old one, ports stay, DELs called meanwhile
    are carried out, and the new one is ready when it serves.
    """
    node = pod.node
    succeeded(node.run("ADD", node.network(), late_sandbox))
    succeeded(node.run("ADD", node.network(), late_sandbox, ifname="net2"))
    before = switch_of(node).interface(PORT)
    with timed("rollout on a node, but for what the kubelet does"):
        with timed("end of the old agent"):
            assert pod.stop() == 0
        succeeded(node.run("DEL", node.network(), late_sandbox, ifname="net2"))
        assert len(spooled(node)) == 1
        with timed("install"):
            pod.install()
        with timed("start of the new agent, by its startup probe"):
            pod.start()
            pod.await_start()
        assert pod.probe("readinessProbe") == (200, [])
    wait_until(lambda: switch_of(node).ports("br-test") == [PORT], what="the DEL of the time between to be done")
    assert spooled(node) == []
    after = switch_of(node).interface(PORT)
    assert (after["_uuid"], after["ofport"]) == (before["_uuid"], before["ofport"])
    succeeded(node.run("DEL", node.network(), late_sandbox))
    assert node.leftovers() == {}


def _hidden(line: str) -> bool:
    """Whether the line only says that the agent may not look at process 1, which no process on this machine may."""
    try:
        return "/proc/1/ns/" in line and not Path("/proc/1/ns/net").stat()
    except PermissionError:
        return True

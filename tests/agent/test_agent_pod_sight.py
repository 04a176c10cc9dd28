"""What containers see of a socket that OVS made and that was mounted for them, after a restart of ovs-vswitchd."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.agent.living import LiveNode, port_of, serving
from tests.cni.spec import succeeded, switch_of
from tests.cni.test_cli_node import cli, decoded
from tests.lab.kube.pods import MAPPED_DIR, Pod
from tests.lab.runtimes.containerd_host import shared_mounts
from tests.lab.runtimes.inhabitant import inhabitant
from tests.lab.switch.switch import wait_until

POD = Pod()
REMEDY = "'mountPropagation: HostToContainer' at the volumeMount, and a new pod"


@pytest.fixture
def volume(live: LiveNode) -> Iterator[Path]:
    """The pod's emptyDir, on another device than OVS's run directory: there the socket can only be mounted."""
    with TemporaryDirectory(prefix="uc-", dir="/dev/shm") as memory, shared_mounts(Path(memory)):
        live.settings["USERSPACE_CNI_KUBELET_DIR"] = memory
        path = Path(memory) / "pods" / POD.uid / "volumes" / "kubernetes.io~empty-dir" / "shared-dir"
        path.mkdir(parents=True)
        assert path.stat().st_dev != switch_of(live).dir.stat().st_dev
        yield path


def test_a_restart_of_the_switch(live: LiveNode, sandbox: str, volume: Path) -> None:
    """The new socket reaches containers whose mounts follow the host's; `check` names the others, before and after a restart."""
    live.start()
    network = serving(live, version="1.0.0")
    result = succeeded(live.run("ADD", network, sandbox, CNI_ARGS=POD.args))
    socket, what = f"{MAPPED_DIR}/{port_of()}", f"socket {volume}/{port_of()}"
    with (
        inhabitant(sandbox, volume, MAPPED_DIR, "rslave") as follower,
        inhabitant(sandbox, volume, MAPPED_DIR, "rprivate") as recluse,
    ):

        def drift() -> dict[str, str]:
            [found] = decoded(live, "check", code=1)["drifts"]
            assert found["what"] == f"{what}, as process {recluse.pid} of the pod sees it"
            assert found["details"].endswith(f"remedy: {REMEDY}")
            return dict(found)

        def inode() -> int:
            with suppress(FileNotFoundError):  # the dead socket goes a moment before the new one comes
                facts = (volume / port_of()).stat()
                return facts.st_ino if stat.S_ISSOCK(facts.st_mode) else 0
            return 0

        assert follower.sees(socket).is_socket()
        assert recluse.sees(socket).is_socket()
        assert drift()["found"] == "a private one"
        succeeded(live.run("CHECK", {**network, "prevResult": result}, sandbox, CNI_ARGS=POD.args))
        before = inode()
        switch_of(live).restart_vswitchd()
        wait_until(lambda: inode() not in (0, before), what="the new socket to be placed")
        assert follower.sees(socket).stat().st_ino == inode()
        assert stat.S_ISREG(recluse.sees(socket).stat().st_mode)
        found = drift()
        assert (found["expected"], found["found"]) == ("the socket on which OVS listens", "a regular file in its place")
        assert REMEDY in cli(live, "check", code=1).stderr
        succeeded(live.run("CHECK", {**network, "prevResult": result}, sandbox, CNI_ARGS=POD.args))
    assert decoded(live, "check") == {"checked": 1, "drifts": [], "unchecked": []}
    succeeded(live.run("DEL", network, sandbox, CNI_ARGS=POD.args))
    live.await_clean()

"""Items 101 to 107 of the specification's checklist: concurrency, crashes, reboots and upgrades.

(tests/crash has the death at every point inside a verb; here the process is killed from outside.)
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import (
    LEASED,
    PORT,
    SUPPORTED,
    finish_by_others,
    held,
    ipam,
    kill,
    paused_vswitchd,
    records,
    refused_late,
    scripted,
    start,
    succeeded,
    switch_of,
)
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node
from tests.lab.node.served import ServedNode
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until

GC: dict[str, Any] = {"cni.dev/valid-attachments": []}


class Dying:
    """An ADD that uses every feature, and ways to kill it from outside at different points."""

    def __init__(self, node: Node, sandbox: str, api: ApiServer) -> None:
        self.node, self.sandbox, self.api = node, sandbox, api
        self.delegate = scripted(node)
        self.pod = Pod(volume={"emptyDir": {}})
        self.pod.create(api)
        node.empty_dir(self.pod.uid)
        self.network = node.network(ipam=ipam(self.delegate), kubeconfig=api.kubeconfig(node.directory))

    def kill_at(self, point: str) -> None:
        """Start ADD and kill it at `point`."""
        points = {"lease": self.leasing, "port": self.waiting_for_ovs, "note": self.noting, "answer": self.printing}
        with points[point]():
            pass

    @contextmanager
    def leasing(self) -> Iterator[None]:
        """Killed while the delegate runs, which continues for a while and ends without an answer."""
        with held(self.delegate, "ADD", answer=LEASED) as newest, self._started() as process:
            newest()
            kill(process)
            yield

    @contextmanager
    def waiting_for_ovs(self) -> Iterator[None]:
        """Killed when the port is committed and not yet open."""
        with paused_vswitchd(switch_of(self.node)), self._started() as process:
            wait_until(lambda: switch_of(self.node).port(PORT), what="the port is in OVSDB")
            kill(process)
            yield

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Killed when everything is done but the pod's annotation; an agent retries that until the server is stopped."""
        self.api.faults.append(Fault("PATCH", hang=60))
        with self._started() as process:
            wait_until(lambda: self.api.count("PATCH"), what="a PATCH")
            kill(process)
            self.api.faults.clear()
            self.api.stop()
            self.api.start()
            yield

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Killed when everything is done and recorded, but the answer has not been read."""
        reading, writing = os.pipe()
        os.write(writing, b" " * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
        with self._started(stdout=writing) as process:
            wait_until(lambda: [record["state"] for record in records(self.node)] == ["ready"], what="a record that is ready")
            kill(process)
        os.close(reading)
        os.close(writing)
        yield

    def _started(self, **options: Any) -> subprocess.Popen[bytes]:
        environ = self.node.variables("ADD", self.sandbox, CNI_ARGS=self.pod.args)
        return start(self.node, environ, json.dumps(self.network).encode(), **options)


@pytest.mark.parametrize("repair", ["DEL", "GC", "other calls"])
@pytest.mark.parametrize("point", ["lease", "port", "note", "answer"])
def test_101_killed(node: Node, sandbox: str, api: ApiServer, point: str, repair: str) -> None:
    """An ADD that got SIGKILL is undone by DEL, by GC, or, unless it was complete, by the next calls on the node."""
    dying = Dying(node, sandbox, api)
    dying.kill_at(point)
    if repair == "GC" or (repair, point) == ("other calls", "answer"):
        succeeded(node.run("GC", dying.network | GC))
    elif repair == "DEL":
        succeeded(node.run("DEL", dying.network, sandbox))
    else:
        finish_by_others(node)
    # an agent goes on with an ADD whose caller was killed, and undoes it when it has come to its end
    wait_until(lambda: node.leftovers() == {}, 30 if isinstance(node, ServedNode) else 0, "nothing is left")
    assert dying.delegate.commands().count("DEL") >= 1
    assert "c0ffee" not in json.dumps(dying.pod.annotations(api))


class TestConcurrency:
    """Items 102 and 103."""

    def test_102_fifty_containers_at_once(self, node: Node, sandbox: str) -> None:
        """Fifty ADDs of different containers at the same time succeed, with an address each; one GC removes them all."""
        network = node.network("1.0.0", ipam=node.host_local())
        containers = [f"{number:012d}" + "e" * 52 for number in range(50)]
        with ThreadPoolExecutor(len(containers)) as pool:
            calls = list(pool.map(lambda container: node.run("ADD", network, sandbox, container=container), containers))
        results = [succeeded(made) for made in calls]
        assert len({result["ips"][0]["address"] for result in results}) == len(containers)
        assert len(switch_of(node).ports("br-test")) == len(containers)
        succeeded(node.run("GC", node.network(**GC)))
        assert node.leftovers() == {}

    def test_102_the_wait_for_a_lock_is_bounded(self, node: Node, sandbox: str) -> None:
        """A call for an interface that another call is working on gives up with 11; a killed process leaves no lock."""
        delegate = scripted(node)
        slow = json.dumps(node.network(ipam=ipam(delegate))).encode()
        with held(delegate, "ADD", answer=LEASED) as newest, start(node, node.variables("ADD", sandbox), slow) as process:
            newest()
            for verb in ("ADD", "DEL"):
                refused_late(node, partial(node.run, verb, node.network(), sandbox), 11, "another call")
            kill(process)
        succeeded(node.run("DEL", node.network(), sandbox))
        succeeded(node.run("GC", node.network(**GC)))
        assert node.leftovers() == {}

    def test_103_networks_of_one_container_at_once(self, node: Node, sandbox: str) -> None:
        """go-cni attaches a pod's networks in parallel: all succeed in one directory, and so do their DELs."""
        names = [f"net{number}" for number in range(8)]
        with ThreadPoolExecutor(len(names)) as pool:
            for verb in ("ADD", "DEL"):
                calls = pool.map(lambda name, verb=verb: node.run(verb, node.network(name=name), sandbox, ifname=name), names)
                for made in calls:
                    succeeded(made)
                if verb == "ADD":
                    assert len(switch_of(node).ports("br-test")) == len(names)
        assert node.leftovers() == {}


class TestRecords:
    """Item 104: what is on disk."""

    def test_104_modes(self, node: Node, sandbox: str) -> None:
        """Records have mode 0600 in directories of 0700, with any umask; no temporary file is left."""
        old = os.umask(0)
        try:
            succeeded(node.run("ADD", node.network(), sandbox))
        finally:
            os.umask(old)
        for path in [node.state, *node.state.rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert [path.name for path in (node.state / "attachments").iterdir()] == [f"{CONTAINER}@net1.json"]
        succeeded(node.run("DEL", node.network(), sandbox))

    @pytest.mark.parametrize("verb", ["DEL", "GC"])
    def test_104_what_cannot_be_read(self, node: Node, sandbox: str, verb: str) -> None:
        """A record that is empty, truncated, garbage, of another shape or a directory never fails DEL or GC.

        The port is removed.
        """
        network = node.network(**GC)
        (record,) = [node.state / "attachments" / f"{CONTAINER}@net1.json"]
        for spoil in _spoilers(record):
            succeeded(node.run("ADD", network, sandbox))
            spoil(record.read_bytes())
            succeeded(node.run(verb, network, sandbox))
            assert node.leftovers() == {}
        assert list((node.state / "quarantine").iterdir())


def _spoilers(record: Path) -> Iterator[Callable[[bytes], object]]:
    yield lambda content: record.write_bytes(b"")
    yield lambda content: record.write_bytes(content[: len(content) // 2])
    yield lambda content: record.write_bytes(b"\xff\0garbage")
    strange = {"schema": 1, "steps": [{"step": "moon"}]}
    yield lambda content: record.write_text(json.dumps({**json.loads(content), "value": strange}))

    def directory(content: bytes) -> None:
        record.unlink()
        record.mkdir()

    yield directory


class TestReboot:
    """Item 105: OVSDB and the state directory survive; namespaces, mounts and what is below /run do not."""

    @pytest.mark.parametrize("repair", ["DEL", "GC", "other calls"])
    def test_105_reboot(self, node: Node, repair: str) -> None:
        """After a reboot DEL, GC and the next calls on the node remove port and lease of the last boot's attachment."""
        delegate = scripted(node)
        network = node.network("1.1.0", ipam=ipam(delegate))
        with netns() as gone:
            succeeded(node.run("ADD", network, gone))
        subprocess.run(["umount", *map(str, node.short.iterdir())], check=True)
        subprocess.run(["rm", "-r", str(node.directory / "run")], check=True)
        (record,) = (node.state / "attachments").iterdir()
        record.write_text(record.read_text().replace(_boot_id(), "00000000-0000-4000-8000-000000000000"))
        if repair == "other calls":
            finish_by_others(node)
        else:
            succeeded(node.run(repair, network | GC, gone))
        assert delegate.commands() == ["ADD", "DEL", *(["VERSION", "GC"] if repair == "GC" else [])]
        assert node.leftovers() == {}


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_106_installed_by_rename(bare_node: Node) -> None:
    """Installing over a running plugin replaces the file at once and leaves no half-written file beside it."""
    path = Path(bare_node.plugin)
    with path.open("rb") as running:
        before, content = os.fstat(running.fileno()), running.read()
        command = [sys.executable, "-m", "userspace_cni", "install", "--standalone", "--bin-dir", str(bare_node.bin)]
        subprocess.run(command, check=True, capture_output=True)
        running.seek(0)
        assert running.read() == content
    assert path.stat().st_ino != before.st_ino
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert [entry.name for entry in bare_node.bin.iterdir()] == ["userspace"]
    succeeded(bare_node.run("VERSION", b"{}"))


class TestUpgrade:
    """Item 107: DEL removes what another version left."""

    @pytest.mark.parametrize("added", SUPPORTED)
    def test_107_another_spec_version(self, node: Node, sandbox: str, added: str) -> None:
        """DEL works with a configuration of another cniVersion than ADD's, and a prevResult of a third."""
        old = node.network(added)
        result = succeeded(node.run("ADD", old, sandbox))
        deleted = SUPPORTED[-1 - SUPPORTED.index(added)]
        succeeded(node.run("DEL", {**node.network(deleted), "prevResult": {**result, "cniVersion": "0.2.0"}}, sandbox))
        assert node.leftovers() == {}

    def test_107_a_record_of_the_future(self, node: Node, sandbox: str) -> None:
        """A record that a later version wrote does not stop DEL: port, directory
        and mount are removed by the parts that are known.
        """
        succeeded(node.run("ADD", node.network(), sandbox))
        (record,) = (node.state / "attachments").iterdir()
        content = json.loads(record.read_text())
        content["value"] |= {"schema": 99, "novelty": True}
        record.write_text(json.dumps(content))
        succeeded(node.run("DEL", node.network(), sandbox))
        assert node.leftovers() == {}

    def test_107_a_record_of_the_former_plugin(self, node: Node, sandbox: str) -> None:
        """The record of the plugin that this one replaces names port, socket directory and record; DEL removes all."""
        switch = switch_of(node)
        directory = node.shared / CONTAINER[:12]
        directory.mkdir(parents=True)
        legacy = node.directory / "legacy"
        legacy.mkdir()
        (legacy / f"local-{CONTAINER[:12]}-net1.json").write_text(json.dumps({"vhostname": PORT}))
        switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
        columns = ["type=dpdkvhostuserclient", f"options:vhost-server-path={directory}/{PORT}"]
        switch.vsctl("add-port", "br-test", PORT, "--", "set", "Interface", PORT, *columns)
        succeeded(node.run("DEL", node.network(), sandbox))
        assert switch.ports("br-test") == []
        assert not legacy.exists()
        assert node.leftovers().keys() == {"bridges"}

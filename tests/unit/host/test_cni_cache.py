"""What the runtime's files about its sandboxes say; a file that cannot be read completely counts for nothing."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.host.places import eventually
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.root import HostRoot
from userspace_cni.host.netlink.listening import DirectoryWatch
from userspace_cni.host.runtimes.cni_cache import CniCache, Sandbox
from userspace_cni.linux import paths
from userspace_cni.linux.boot import boottime_ns

BOX = "a" * 64
POD = Sandbox(BOX, "default", "web-0", "11-22", "/proc/self/ns/net")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cache directory as libcni makes it."""
    (tmp_path / "results").mkdir(mode=0o700)
    return tmp_path


def written(directory: Path, name: str, content: Any) -> Path:
    path = directory / "results" / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def entry(pod: Sandbox = POD, ifname: str = "eth0", **more: Any) -> dict[str, Any]:
    """The content of a file as containerd 1.6 has it: without the key netns, with arguments in any order."""
    args = [
        ["IgnoreUnknown", "1"],
        ["K8S_POD_NAMESPACE", pod.namespace],
        ["K8S_POD_NAME", pod.name],
        ["K8S_POD_INFRA_CONTAINER_ID", pod.id],
        ["K8S_POD_UID", pod.uid],
    ]
    random.shuffle(args)
    interfaces = [{"name": "veth1", "mac": "02:00:00:00:00:01"}, {"name": ifname, "sandbox": pod.path}]
    return {
        "kind": "cniCacheV1",
        "containerId": pod.id,
        "ifName": ifname,
        "networkName": "net-a",
        "cniArgs": args,
        "result": {"cniVersion": "1.0.0", "interfaces": interfaces},
        **more,
    }


def test_sandboxes_of_pods(directory: Path) -> None:
    """The files of one sandbox are one entry; newer libcni has the namespace itself; without a cluster there is no uid."""
    written(directory, f"cni-loopback-{BOX}-lo", entry(ifname="lo"))
    written(directory, f"net-a-{BOX}-eth0", entry())
    other = Sandbox("b" * 64, "db", "db", "", "/proc/1/ns/net")
    args = [["K8S_POD_NAMESPACE", "db"], ["K8S_POD_NAME", "db"]]
    written(directory, "x", entry(other, cniArgs=args, netns=other.path, result={"ips": []}))
    cache = CniCache(str(directory))
    assert (sorted(cache.sandboxes(), key=lambda each: each.id), cache.unreadable) == ([POD, other], 0)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", '"x"', "[" * 100_000),
        *(entry(kind="cniCacheV2"), entry(result=None), entry(result={"interfaces": {}}), entry(containerId=7)),
        *(entry(containerId=""), entry(netns="/run/netns/other"), entry(netns="host", result={}), entry(cniArgs=7, result=7)),
    ],
)
def test_files_that_tell_nothing(directory: Path, content: Any) -> None:
    """Empty, torn or foreign files, and those without a namespace or with two, are left out and counted; the others are read."""
    written(directory, "bad", content)
    written(directory, f"net-a-{'c' * 64}-eth0", entry(Sandbox("c" * 64, "ns", "pod", "uid", "/proc/1/ns/net")))
    cache = CniCache(str(directory))
    assert ([each.uid for each in cache.sandboxes()], cache.unreadable) == (["uid"], 1)


def test_files_that_differ(directory: Path) -> None:
    """Two files that contradict each other about one sandbox count for nothing."""
    written(directory, "one", entry())
    written(directory, "two", entry(Sandbox(BOX, "default", "web-0", "other-uid", POD.path)))
    cache = CniCache(str(directory))
    assert (cache.sandboxes(), cache.unreadable) == ([], 1)


def test_files_of_a_former_boot(directory: Path) -> None:
    """They are left over, because their namespaces ended with that boot. A path that is not a process's does not exist then.

    So a file that is older than the boot only by its time counts, because the clock may have been set.
    """
    before = time.time() - boottime_ns() / 1e9 - 60
    cache = CniCache(str(directory))
    (directory / "cni-1").touch()
    for place, count in (("/proc/1/ns/net", 0), (f"{directory}/cni-1", 1)):
        os.utime(written(directory, "one", entry(Sandbox(BOX, "default", "web-0", "11-22", place))), (before, before))
        assert (len(cache.sandboxes()), cache.unreadable) == (count, 1 - count)


def test_a_namespace_that_is_gone(directory: Path) -> None:
    """The file of one tells nothing, and is nothing odd: runtimes leave such."""
    path = directory / "cni-1"
    written(directory, "one", entry(Sandbox(BOX, "default", "web-0", "11-22", str(path))))
    cache = CniCache(str(directory))
    assert (cache.sandboxes(), cache.unreadable) == ([], 0)
    path.touch()
    assert [each.path for each in cache.sandboxes()] == [str(path)]


def test_what_is_no_file(directory: Path, tmp_path: Path) -> None:
    """A directory, a FIFO and a link in the cache are not opened; no directory at all is no sandbox."""
    (directory / "results" / "sub").mkdir()
    os.mkfifo(directory / "results" / "fifo")
    (directory / "results" / "link").symlink_to(written(tmp_path, "elsewhere", entry()))
    cache = CniCache(str(directory))
    assert [each.id for each in cache.sandboxes()] == [BOX]
    assert cache.unreadable == 3
    assert CniCache(str(tmp_path / "none")).sandboxes() == []


def test_a_cache_that_cannot_be_read(directory: Path) -> None:
    """It does not count as empty: here links that lead in a circle, on the host and below another root."""
    (directory / "loop").symlink_to("loop")
    for cache in (CniCache(f"{directory}/loop"), CniCache("/loop", HostRoot(str(directory)))):
        with pytest.raises(UserspaceError, match="loop"):
            cache.sandboxes()


def test_a_file_that_changed_is_read_again(directory: Path) -> None:
    """One that did not is not; one that is gone tells nothing any more."""
    path, cache = written(directory, "one", entry()), CniCache(str(directory))
    [first] = cache.sandboxes()
    assert cache.sandboxes()[0] is first
    moved = Sandbox(BOX, "default", "web-0", "11-22", "/proc/1/ns/net")
    written(directory, "new", entry(moved)).rename(path)
    assert cache.sandboxes() == [moved]
    path.unlink()
    assert cache.sandboxes() == []


@pytest.fixture
def changes(directory: Path) -> Iterator[list[int]]:
    """A counter of reported changes."""
    told: list[int] = []
    watch = DirectoryWatch(lambda: told.append(1), f"{directory}/results", "the sandboxes")
    watch.start()
    try:
        yield told
    finally:
        watch.stop()
    assert not watch.alive


def test_changes_are_told(directory: Path, changes: list[int]) -> None:
    """A file that is written, renamed or removed is reported, and first of all that the watch listens."""
    eventually(lambda: bool(changes))
    one, two = directory / "results" / "one", directory / "results" / "two"
    before = len(changes)
    written(directory, "one", entry())
    eventually(lambda: len(changes) > before)
    before = len(changes)
    one.rename(two)
    eventually(lambda: len(changes) > before)
    before = len(changes)
    two.unlink()
    eventually(lambda: len(changes) > before)


def listens(told: list[int], directory: Path) -> bool:
    """Whether files that are written there now are reported, each within a moment."""
    for _ in range(2):  # the first one may come just before it begins to listen, of which it tells, too
        before = len(told)
        with suppress(FileNotFoundError, AssertionError):
            written(directory, "one", entry())
            eventually(lambda before=before: len(told) > before, 0.2)  # type: ignore[misc]
        if len(told) == before:
            return False
    return True


def test_a_directory_that_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """It is watched once it exists, and so is one that replaces it; its absence is reported once, as no fault."""
    monkeypatch.setattr("userspace_cni.host.netlink.listening.AGAIN_S", 0.02)
    told: list[int] = []
    watch = DirectoryWatch(lambda: told.append(1), f"{tmp_path}/results", "the sandboxes")
    watch.start()
    said: list[str] = []

    def has_said() -> bool:
        said.append(capfd.readouterr().err)
        return "it is listened to once it is" in "".join(said)

    try:
        eventually(has_said)
        (tmp_path / "results").mkdir()
        eventually(lambda: listens(told, tmp_path))
        has_said()
        assert "".join(said).count("level=") == "".join(said).count("level=info") == 1
        (tmp_path / "results").rename(tmp_path / "former")
        (tmp_path / "results").mkdir()
        eventually(lambda: listens(told, tmp_path))
    finally:
        watch.stop()


def test_a_directory_that_comes_just_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that was missing when it was identified, and existed when it was watched: its end is noticed, too."""
    inotify = paths.inotify

    def made_and_listened_to(directory: str) -> int:
        Path(directory).mkdir(exist_ok=True)
        return inotify(directory)

    monkeypatch.setattr("userspace_cni.host.netlink.listening.AGAIN_S", 0.02)
    monkeypatch.setattr("userspace_cni.host.netlink.listening.paths.inotify", made_and_listened_to)
    told: list[int] = []
    watch = DirectoryWatch(lambda: told.append(1), f"{tmp_path}/results", "the sandboxes")
    watch.start()
    try:
        eventually(lambda: bool(told))
        (tmp_path / "results").rename(tmp_path / "former")
        eventually(lambda: listens(told, tmp_path))
    finally:
        watch.stop()


def test_inotify_of_no_directory(tmp_path: Path) -> None:
    """What is absent or a file is an error with the path."""
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        with pytest.raises(OSError, match=name):
            paths.inotify(str(tmp_path / name))

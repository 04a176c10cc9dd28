"""The host's paths as a process with another root sees them: links are followed as on the host, and none leads out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HERE, HostRoot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's root: /var/run leads to /run by an absolute link, /opt/cni by a relative one."""
    top = tmp_path / "host"
    for name in ("run/netns", "var/lib", "usr/lib/cni", "opt", "etc"):
        (top / name).mkdir(parents=True)
    (top / "var" / "run").symlink_to("/run")
    (top / "opt" / "cni").symlink_to("../usr/lib/cni")
    (tmp_path / "secret").write_text("not the host's")
    return top


@pytest.mark.parametrize("path", ["/var/run/../lib//x/", "/", "/etc/passwd", "relative"])
def test_the_host_itself(path: str) -> None:
    """On the host every path stays as it is, letter by letter."""
    assert HERE.path(path) == path
    assert not HERE.elsewhere
    assert HERE.directory == "/"


def test_resolved_on_the_host(root: Path) -> None:
    """On the host a path is resolved as ever."""
    (root / "link").symlink_to(f"{root}/etc")
    assert HERE.resolve(f"{root}/link") == os.path.realpath(f"{root}/etc")


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/", "/"),
        ("/etc/passwd", "/etc/passwd"),
        ("/var/run/netns/cni-x", "/run/netns/cni-x"),
        ("/var/run", "/run"),
        ("/var//run/./netns/", "/run/netns"),
        ("/opt/cni/host-local", "/usr/lib/cni/host-local"),
        ("/opt/cni/../x", "/usr/lib/x"),
        ("/no/such/thing", "/no/such/thing"),
        ("/../../etc", "/etc"),
        ("/proc/self/root/etc", "/proc/self/root/etc"),
    ],
)
def test_paths_below_another_root(root: Path, path: str, seen: str) -> None:
    """Absolute and relative links, dots and what does not exist yet are resolved below the root."""
    there = HostRoot(str(root))
    assert there.resolve(path) == seen
    assert there.path(path) == f"{root}{seen}".rstrip("/")


@pytest.mark.parametrize("spelled", ["{}", "{}/", "{}//"])
def test_spelling_of_the_root(root: Path, spelled: str) -> None:
    """A slash at the end of the root makes no difference."""
    there = HostRoot(spelled.format(root))
    assert there.path("/etc") == f"{root}/etc"
    assert there.directory == str(root)
    assert there.elsewhere


@pytest.mark.parametrize("target", ["/{}/secret", "../../../../../../../../../../{}/secret", "/../../{}/secret"])
def test_no_link_leads_out(root: Path, tmp_path: Path, target: str) -> None:
    """A link that aims at our own files ends below the root, where there is nothing, also when the link dangles."""
    (root / "etc" / "link").symlink_to(target.format(str(tmp_path).strip("/")))
    seen = HostRoot(str(root)).path("/etc/link")
    assert seen == f"{root}{tmp_path}/secret"
    assert not Path(seen).exists()


def test_links_in_a_circle(root: Path) -> None:
    """A circle of links is refused by the path that was asked for."""
    (root / "a").symlink_to("/b")
    (root / "b").symlink_to("a")
    with pytest.raises(DirectoryRefused, match="path /a/x: its links lead in a circle"):
        HostRoot(str(root)).path("/a/x")


def test_long_chain_of_links(root: Path) -> None:
    """As many links as the kernel follows are followed."""
    (root / "l0").symlink_to("etc")
    for number in range(1, 40):
        (root / f"l{number}").symlink_to(f"/l{number - 1}")
    assert HostRoot(str(root)).path("/l39") == f"{root}/etc"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "\udcff"])
def test_names_that_can_not_exist(root: Path, name: str) -> None:
    """A name that no file can have, and one that is no text, are passed on for the system call to refuse."""
    assert HostRoot(str(root)).path(f"/etc/{name}") == f"{root}/etc/{name}"


def test_links_of_proc_are_the_kernels(tmp_path: Path) -> None:
    """A link in proc(5) is no path: a namespace is opened through it, not resolved."""
    there = HostRoot(f"{tmp_path}/root")
    Path(there.directory).symlink_to("/")
    netns = f"/proc/{os.getpid()}/ns/net"
    assert there.path(netns) == f"{there.directory}{netns}"
    assert Path(there.path(netns)).stat().st_ino == Path(netns).stat().st_ino

"""A pod that exchanges links and its directory while we work there gets access to nothing outside of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

import pytest

from tests.host.places import UNUSED_ID, listening, looping, mode, mounts_at, soon, tree
from userspace_cni.attachment.steps import ConfigFile, Directory, PlacedSocket, PodMount, SocketFile
from userspace_cni.base.errors import DirectoryRefused, InvalidConfig, Unavailable
from userspace_cni.host.files.mounts import PodMountDriver
from userspace_cni.host.files.placement import PlacedSocketDriver
from userspace_cni.host.files.vhost_sockets import DirectoryDriver, SocketFileDriver
from userspace_cni.host.files.whole_files import ConfigFileDriver
from userspace_cni.kube.kubeconfig import Kubeconfig, KubeconfigBounds

ROUNDS = 200
ROUNDS_MAX = 20_000


@pytest.fixture
def victim(room: Path) -> Path:
    """A directory into which a pod wants to lead us: it looks like its own directory."""
    path = room / "victim"
    path.mkdir(mode=0o755)
    (path / "inner").mkdir(mode=0o755)
    return path


@pytest.fixture(params=["uid", "uid/inner"])
def pod(request: pytest.FixtureRequest, room: Path) -> Path:
    """The pod's directory, and whether the pod exchanges this one or the one above it."""
    path = room / "pods" / str(request.param)
    path.mkdir(parents=True)
    return path


def swapping(room: Path, victim: Path) -> Callable[[], None]:
    """One round of the pod: its directory is a link to the victim for a moment, then itself again."""
    place, aside, link = room / "pods" / "uid", room / "pods" / "aside", room / "pods" / "link"
    link.symlink_to(victim)

    def swap() -> None:
        place.rename(aside)
        link.rename(place)
        place.rename(link)
        aside.rename(place)

    return swap


def outcomes(work: Callable[[], object]) -> None:
    """Do `work` at least ROUNDS times, and until the exchange was met before and after it; only refusals are allowed."""
    done = refused = 0
    while done + refused < ROUNDS or not (done and refused):
        assert done + refused < ROUNDS_MAX, f"{done} rounds succeeded and {refused} were refused: no race took place"
        try:
            work()
            done += 1
        except DirectoryRefused:
            refused += 1


def test_directory(room: Path, pod: Path, victim: Path) -> None:
    """Owner and mode are never set on anything but the pod's directory."""
    driver, step = DirectoryDriver(), Directory(str(pod), f"{room}/pods", own=True, user=str(UNUSED_ID), mode=0o777)
    with looping(swapping(room, victim)):
        outcomes(lambda: driver.apply(step, soon()))
    for path in (victim, victim / "inner"):
        assert (path.stat().st_uid, mode(path)) == (0, 0o755)


def test_parents(room: Path, victim: Path) -> None:
    """Missing parents are made only where no link was followed."""
    driver, place = DirectoryDriver(), room / "shared" / "a"
    step = Directory(f"{place}/b/c0ffee", f"{room}/shared", create=True, mode=0o777, parents=True)
    place.parent.mkdir()

    def swap() -> None:
        with suppress(OSError):
            place.symlink_to(victim)
            place.unlink()
        rmtree(place, ignore_errors=True)

    with looping(swap):
        outcomes(lambda: driver.apply(step, soon()))
    assert (tree(victim), mode(victim)) == ({"inner"}, 0o755)


def test_config_file(room: Path, pod: Path, victim: Path) -> None:
    """Nothing is written or removed outside of the pod's directory."""
    driver, step = ConfigFileDriver(), ConfigFile(str(pod), f"{room}/pods", "facts.json", "{}")
    (victim / "facts.json").write_text("precious")
    (victim / "inner" / "facts.json").write_text("precious")
    with looping(swapping(room, victim)):
        outcomes(lambda: driver.apply(step, soon()))
        for _ in range(ROUNDS):
            driver.undo(step, soon())
    assert tree(victim) == {"inner", "facts.json"}
    assert {path.read_text() for path in victim.rglob("facts.json")} == {"precious"}


def test_kubeconfig(room: Path, pod: Path, victim: Path) -> None:
    """The file that is read is the one that was checked: no other file is used, however fast the pod exchanges them."""
    for directory, token in ((pod, "good"), (victim, "precious"), (victim / "inner", "precious")):
        user = {"name": "u", "user": {"token": token}}
        cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": [user]}
        (directory / "kubeconfig").write_text(json.dumps(config))
    kubeconfig = Kubeconfig(f"{pod}/kubeconfig", bounds=KubeconfigBounds((f"{room}/pods",)))

    def work() -> None:
        try:
            [user] = kubeconfig.load().config["users"]
        except (InvalidConfig, Unavailable) as error:
            raise DirectoryRefused(error.message) from error
        assert user["user"] == {"token": "good"}

    with looping(swapping(room, victim)):
        outcomes(work)


def test_socket_file(room: Path, pod: Path, victim: Path) -> None:
    """No socket outside of the pod's directory is removed."""
    driver, step = SocketFileDriver(), SocketFile(str(pod), f"{room}/pods", "sock")
    with listening(victim / "sock"), listening(victim / "inner" / "sock"), looping(swapping(room, victim)):
        outcomes(lambda: driver.apply(step, soon()))
        for _ in range(ROUNDS):
            driver.undo(step, soon())
    assert (victim / "sock").is_socket()
    assert (victim / "inner" / "sock").is_socket()


def test_mount(room: Path, pod: Path, victim: Path) -> None:
    """OVS never gets a mount of a directory other than the pod's."""
    driver, step = PodMountDriver("/nowhere"), PodMount(str(pod), f"{room}/pods", f"{room}/short/uid")
    (pod / "own").touch()

    def work() -> None:
        try:
            driver.apply(step, soon())
            assert "own" in tree(Path(step.target))
        finally:
            driver.undo(step, soon())

    with looping(swapping(room, victim)):
        outcomes(work)
    assert tree(room / "short") <= set()


@pytest.mark.parametrize("device", ["same", "other"])
def test_placed_socket(room: Path, shm: Path, pod: Path, victim: Path, device: str) -> None:
    """OVS's socket is never placed, mounted or removed outside the pod's directory."""
    source = (room if device == "same" else shm) / "source"
    driver, step = PlacedSocketDriver(), PlacedSocket(str(source), str(pod), f"{room}/pods", "sock", user=str(UNUSED_ID))

    def work() -> None:
        with listening(source):
            try:
                driver.apply(step, soon())
            finally:
                source.unlink(missing_ok=True)
        driver.undo(step, soon())

    with looping(swapping(room, victim)):
        outcomes(work)
    assert tree(victim) == {"inner"}
    assert tree(victim / "inner") == set()
    assert mounts_at(victim / "sock") == []


def test_name_swapped(room: Path, victim: Path) -> None:
    """A socket's name that alternates between a link and a socket leads nowhere, either."""
    pod = room / "pods" / "uid"
    pod.mkdir(parents=True)
    (victim / "target").write_text("precious")
    (victim / "target").chmod(0o600)
    source, name = room / "source", pod / "sock"
    driver = PlacedSocketDriver()
    step = PlacedSocket(str(source), str(pod), f"{room}/pods", "sock", user=str(UNUSED_ID), mode=0o666)

    def swap() -> None:
        (pod / "new").symlink_to(victim / "target")
        (pod / "new").rename(name)
        name.unlink(missing_ok=True)

    def work() -> None:
        with listening(source):
            try:
                driver.apply(step, soon())
                driver.apply(step, soon().within(0.01))
            finally:
                source.unlink(missing_ok=True)

    with looping(swap):
        for _ in range(ROUNDS):
            with suppress(DirectoryRefused, Unavailable):
                work()
        driver.undo(step, soon())
    assert (victim / "target").read_text() == "precious"
    assert ((victim / "target").stat().st_uid, mode(victim / "target")) == (0, 0o600)


def test_temporary_name_taken(room: Path) -> None:
    """Nothing is written through a link at the temporary name of our file, and the error says what is there."""
    pod = room / "pods" / "uid"
    pod.mkdir(parents=True)
    (room / "target").write_text("precious")
    (pod / ".facts.json.tmp").symlink_to(room / "target")
    driver, step = ConfigFileDriver(), ConfigFile(str(pod), f"{room}/pods", "facts.json", "{}")
    with pytest.raises(DirectoryRefused, match=r"a symbolic link is at its temporary name"):
        driver.apply(step, soon())
    driver.undo(step, soon())
    assert (room / "target").read_text() == "precious"


def test_fifo_is_not_waited_for(room: Path) -> None:
    """A FIFO in the place of a file blocks neither ADD nor CHECK nor DEL."""
    pod = room / "pods" / "uid"
    pod.mkdir(parents=True)
    os.mkfifo(pod / "facts.json")
    driver, step = ConfigFileDriver(), ConfigFile(str(pod), f"{room}/pods", "facts.json", "{}")
    with pytest.raises(DirectoryRefused, match="a FIFO"):
        driver.apply(step, soon())
    assert len(driver.check(step, soon())) == 1
    driver.undo(step, soon())
    assert tree(pod) == {"facts.json"}

"""What follows from a pod's application being the user of an interface, beside its terms and its plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from userspace_cni.attachment.facts import Pod, Volume
from userspace_cni.base.errors import DirectoryRefused, InvalidConfig
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.base.tenancy import Rule
from userspace_cni.consumers import CONSUMERS

POD = CONSUMERS["pod"]


def test_the_shared_directory_is_the_last_containers_mount() -> None:
    """The last container that mounts the volume wins; without one it is upstream's default; both end in a slash."""
    pod = Pod("default", "app", "u1", mounts={"shared-dir": ("/a", "/b"), "info": ("/etc/podinfo",)})
    assert POD.mapped_dir(pod, Settings(shared_volume="shared-dir")) == "/b/"
    assert POD.mapped_dir(pod, Settings(shared_volume="other")) == "/var/lib/cni/usrspcni/"
    assert POD.mapped_dir(Pod(), Settings()) == "/var/lib/cni/usrspcni/"
    with pytest.raises(InvalidConfig, match="default/x"):
        POD.mapped_dir(Pod("default", "x", "u", mounts={"v": ("/a b",)}), Settings(shared_volume="v"))


@pytest.mark.parametrize(
    ("volumes", "unseen"),
    [
        ((), "it has no volume 'shared-dir'"),
        (
            (Volume("shared-dri", "emptyDir"), Volume("info", "downwardAPI")),
            "it has no volume 'shared-dir' (but shared-dri, info)",
        ),
        ((Volume("shared-dir", "ephemeral"),), "its volume 'shared-dir' is of kind 'ephemeral'"),
        ((Volume("any", "hostPath", "{top}/base/below"),), "it has no volume"),
        ((Volume("any", "hostPath", "{top}/bas"),), "it has no volume"),
        ((Volume("any", "hostPath", "{top}/base/"),), ""),
        ((Volume("any", "hostPath", "{top}/link"),), ""),
        ((Volume("any", "hostPath", "/"),), ""),
    ],
)
def test_who_sees_the_default_directory(tmp_path: Path, volumes: tuple[Volume, ...], unseen: str) -> None:
    """A hostPath of the pod has it in it, links followed; else the place says why no container sees it."""
    (tmp_path / "base").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    placed = tuple(Volume(each.name, each.kind, each.path.replace("{top}", str(tmp_path))) for each in volumes)
    settings = Settings(default_shared_dir=str(tmp_path / "base"))
    place = POD.find_place(Pod("default", "app", volumes=placed), "c0ffee", "", settings, HERE)
    assert place.path == f"{tmp_path}/base/c0ffee"
    assert place.unseen.startswith(unseen)
    assert bool(place.unseen) == bool(unseen)


@pytest.mark.parametrize(
    ("path", "trusted"),
    [
        ("allowed/pmd-1", "allowed"),
        ("allowed/there", "allowed"),
        ("allowed/in/pmd-1", "allowed"),
        ("elsewhere", "/"),
        ("allowed", "/"),
        ("allowed/out", "/"),
        ("allowed/ours/there", "/"),
    ],
)
def test_where_a_missing_host_path_is_made(tmp_path: Path, path: str, trusted: str) -> None:
    """Below an allowed directory, links followed, and not in a directory of our own; elsewhere it has to be there."""
    for each in ("allowed/there", "allowed/deep", "allowed/ours/there", "elsewhere"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "allowed" / "in").symlink_to(tmp_path / "allowed" / "deep")
    (tmp_path / "allowed" / "out").symlink_to(tmp_path / "elsewhere")
    settings = Settings(shared_dirs=(str(tmp_path / "allowed"),), short_dir=str(tmp_path / "allowed" / "ours"))
    pod = Pod("default", "app", volumes=(Volume("shared-dir", "hostPath", str(tmp_path / path)),))
    place = POD.find_place(pod, "c0ffee", "", settings, HERE)
    assert place.path == str((tmp_path / path).resolve())
    assert (place.trusted, place.create) == (str(tmp_path / trusted) if trusted != "/" else "/", trusted != "/")
    assert not place.own


@pytest.mark.parametrize(
    "path", ["allowed/between/pmd-1", "allowed/ours/new", "allowed/ours-not", "elsewhere/new", "allowed-not/new"]
)
def test_where_none_is_made(tmp_path: Path, path: str) -> None:
    """Without the directory above it, in one of ours, outside: refused, with what to write instead."""
    for each in ("allowed/ours", "elsewhere", "allowed-not"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "allowed" / "ours-not").symlink_to(tmp_path / "elsewhere" / "none")
    settings = Settings(shared_dirs=(str(tmp_path / "allowed"),), short_dir=str(tmp_path / "allowed" / "ours"))
    pod = Pod("default", "app", volumes=(Volume("shared-dir", "hostPath", str(tmp_path / path)),))
    with pytest.raises(DirectoryRefused, match="is not a directory; write `type: DirectoryOrCreate`"):
        POD.find_place(pod, "c0ffee", "", settings, HERE)


def test_a_rule_without_directories_lets_none_be_made(tmp_path: Path) -> None:
    """The rules of the pod's namespace stand in the place of the setting."""
    settings = Settings(shared_dirs=(str(tmp_path),), rules=(Rule(1, ("blue",), directories=()),))
    volumes = (Volume("shared-dir", "hostPath", str(tmp_path / "pmd-1")),)
    assert POD.find_place(Pod("red", "app", volumes=volumes), "c0ffee", "", settings, HERE).create
    with pytest.raises(DirectoryRefused, match="without, it is made nowhere"):
        POD.find_place(Pod("blue", "app", volumes=volumes), "c0ffee", "", settings, HERE)

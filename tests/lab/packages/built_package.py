"""The Debian package of this tree, built once for the same sources; its libraries are fetched once for the same versions."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from deploy import debian_package, dist
from tests.lab.guests.roots import kept
from tests.lab.suite.tree import Tree

EPOCH: Final = 1_795_000_000
_SOURCES: Final = (
    *("kubevirt/", "localdb/", "userspace_cni/", "deploy/debian/", "deploy/debian_package.py", "deploy/dist.py"),
    *("deploy/slim_libraries.py", "CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md"),
)
_PINNED: Final = ("constraints.txt", "pyproject.toml")
_FORMER: Final = 2
_BUILT: Final = {"BUILD_COMMIT": "c0ffeec0ffee", "BUILD_DATE": "2026-11-28T03:12:11Z"}


def package() -> Path:
    """The package, built now unless there is one of these sources. CalledProcessError when a part of that fails."""
    sources = [path for path in Tree.at(dist.ROOT).paths if path.startswith((*_SOURCES, *_PINNED))]
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path} {(dist.ROOT / path).stat().st_size}\n".encode() + (dist.ROOT / path).read_bytes())

    def make(part: Path) -> None:
        with TemporaryDirectory(prefix="uc-package-") as directory:
            wheel = _wheel(Path(directory), sources)
            shutil.copy(wheel, part)
            debian_package.build(wheel, libraries(), part, EPOCH)

    [made] = kept("debian-package", digest.hexdigest(), make, _FORMER).glob("*.deb")
    return made


def again(made: Path, target: Path) -> Path:
    """The package built another time, below `target`, of the same wheel and libraries."""
    [wheel] = made.parent.glob("*.whl")
    return debian_package.build(wheel, libraries(), target, EPOCH)


def later(made: Path, version: str, directory: Path) -> Path:
    """The same package with another version, below `directory`."""
    name, former, architecture = made.name.split("_")
    tree, target = directory / version, directory / f"{name}_{version}_{architecture}"
    subprocess.run(["dpkg-deb", "--raw-extract", made, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"Version: {former}\n", f"Version: {version}\n"))
    options = ["--root-owner-group", "-Znone", "--build"]
    subprocess.run(["dpkg-deb", *options, tree, target], stdout=subprocess.DEVNULL, check=True)
    shutil.rmtree(tree)
    return target


def libraries() -> Path:
    """What pip fetched."""
    recipe = [(dist.ROOT / name).read_text() for name in _PINNED]
    return kept("package-libraries", recipe, debian_package.fetch_libraries, _FORMER)


def _wheel(directory: Path, sources: list[str]) -> Path:
    tree, target = directory / "sources", directory / "dist"
    for path in sources:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(dist.ROOT / path, tree / path)
    target.mkdir()
    with pytest.MonkeyPatch.context() as environ:
        for name, value in _BUILT.items():
            environ.setenv(name, value)
        return dist.build(tree, target, EPOCH)[1]

"""What is built of a commit does not depend on who builds it: modes are as usual, and what fails is said in a line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import debian_package, dist

PROGRAMS = ("deploy.dist", "deploy.debian_package", "deploy.image_builds", "deploy.check_release")


@pytest.fixture
def _strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def modes(directory: Path) -> set[int]:
    """The modes of all files and directories in it."""
    return {path.stat().st_mode & 0o777 for path in directory.rglob("*")}


@pytest.mark.usefixtures("_strict_umask")
def test_libraries_are_readable_whatever_the_umask_is(tmp_path: Path) -> None:
    """Libraries of the package can be read by every user of a node, also where who builds it keeps files private."""
    wheel = tmp_path / "some-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some/__init__.py", "")
        archive.writestr("some-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: some\nVersion: 1\n")
        archive.writestr("some-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("some-1.dist-info/RECORD", "")
    debian_package._pip("install", "--no-index", "--no-compile", f"--target={tmp_path / 'target'}", str(wheel))
    assert modes(tmp_path / "target") == {0o755, 0o644}


@pytest.mark.usefixtures("_strict_umask")
def test_the_clone_of_a_build_has_the_usual_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an image copies from the clone can be read by every user; its time is that of the commit, and new files are named."""
    tree, clone = tmp_path / "tree", tmp_path / "clone"
    tree.mkdir()
    (tree / "file").write_text("x")
    environment = {"PATH": os.defpath, "GIT_COMMITTER_DATE": "@1700000000 +0000"}
    commit = ("-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message=one")
    for argv in (("init", "--quiet"), ("add", "."), commit):
        subprocess.run(["git", "-C", tree, *argv], env=environment, check=True)
    (tree / "new").touch()
    assert dist.clone_commit(clone, tree) == 1_700_000_000
    assert (clone / "file").stat().st_mode & 0o777 == 0o644
    assert not (clone / "new").exists()
    assert "?? new" in capsys.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_repository_a_line_says_what_failed(program: str, tmp_path: Path) -> None:
    """Unpacked sources without a repository are refused in git's words, without a traceback, and with exit code 1."""
    shutil.copytree(dist.ROOT / "deploy", tmp_path / "deploy")
    shutil.copy(dist.ROOT / "pyproject.toml", tmp_path)
    environment = {"PATH": os.defpath, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", program]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not a git repository" in done.stderr
    assert "returned non-zero exit status 128" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "build").exists()

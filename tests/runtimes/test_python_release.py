"""What is released for Python: complete, free of other files, the same twice, and it runs from the wheel alone.

It is built from a copy of the tree, which has no git. The libraries are the tests' own, so that nothing is fetched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from zipfile import ZipFile

import pytest

from deploy import dist
from tests.lab.node.agent import get
from tests.lab.suite.tree import Tree
from tests.lab.switch.switch import wait_until
from userspace_cni.pod.program_build import recorded_build

SITE = Path(pytest.__file__).parents[1]
"""Where the tests' own libraries are. On PYTHONPATH a .pth file in it, as that of the project's own checkout, does nothing."""
BUILT: Final = {"BUILD_COMMIT": "c0ffeec0ffee", "BUILD_DATE": "2026-11-28T03:12:11Z"}
EPOCH: Final = 1_795_000_000
PACKAGES: Final = ("kubevirt/", "localdb/", "userspace_cni/")
OF_SOURCES: Final = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml")
COMPILED_FROM: Final = (".c", ".h", ".cdef", ".proto")
RECORD: Final = "userspace_cni/pod/build.json"


class Made(NamedTuple):
    """The two files of a build."""

    archive: Path
    wheel: Path


def make(top: Path, name: str, umask: int) -> Made:
    """Build from a copy of the tree below `top`, whose files are new, by a user with this umask."""
    sources, target = top / name, top / f"{name}.dist"
    for path in Tree.at(dist.ROOT).paths:
        if path.startswith(PACKAGES) or path in OF_SOURCES:
            (sources / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(dist.ROOT / path, sources / path)
    target.mkdir()
    before = os.umask(umask)
    try:
        with pytest.MonkeyPatch.context() as environ:
            for variable, value in BUILT.items():
                environ.setenv(variable, value)
            return Made(*dist.build(sources, target, EPOCH))
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("dist"), "one", 0o077)


@pytest.fixture(scope="module")
def program(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`userspace-cni` in a fresh virtual environment that has the wheel."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", f"--python={venv / 'bin' / 'python'}", "install", *dist.QUIET]
    subprocess.run([*pip, "--no-warn-script-location", str(made.wheel)], cwd="/", check=True)
    return venv / "bin" / "userspace-cni"


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that has the wheel and the libraries, and nothing of the checkout."""
    return {"PATH": os.defpath, "PYTHONPATH": str(SITE), **more}


def run(program: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What a call outside the tree answers."""
    argv, environ = [str(program), *arguments], environment(**more)
    return subprocess.run(argv, env=environ, cwd="/", stdin=-3, capture_output=True, text=True, timeout=60, check=False)


def tracked() -> set[str]:
    """The packages' files, as git knows them."""
    return {path for path in Tree.at(dist.ROOT).paths if path.startswith(PACKAGES)}


def test_the_same_twice(made: Made, tmp_path: Path) -> None:
    """Another build of the same sources, elsewhere, later and by another user, gives the same bytes."""
    again = make(tmp_path, "another-place", 0o022)
    assert [path.name for path in again] == [path.name for path in made]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in made]


def test_the_archive_of_the_sources(made: Made) -> None:
    """It has each source of the packages, what they are built by and the licence; no link, no test, and nothing made here."""
    with tarfile.open(made.archive) as archive:
        members = archive.getmembers()
    names = {each.name.partition("/")[2] for each in members}
    generated = {name for name in names if name.startswith("userspace_cni.egg-info/")}
    assert names - generated == {*tracked(), *OF_SOURCES, RECORD, "PKG-INFO", "setup.cfg"}
    assert all(each.isreg() and (each.mode, each.uid, each.mtime) == (0o644, 0, EPOCH) for each in members)


def test_the_wheel(made: Made) -> None:
    """It has the packages' files, but for what is only compiled, and the four results; its tag says for which machine it is."""
    with ZipFile(made.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [licence] = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
        assert wheel.read(licence) == (dist.ROOT / "LICENSE").read_bytes()
    libraries = {name for name in names if name.endswith(".so")}
    compiled = {"userspace_cni/fastpath/_frames", "userspace_cni/fastpath/_native", "userspace_cni/linux/_native"}
    assert {re.sub(r"\..*", "", name) for name in libraries} == compiled
    expected = {path for path in tracked() if not path.endswith(COMPILED_FROM)}
    assert names - libraries == {*expected, RECORD, "userspace_cni/shim/userspace"}
    assert re.fullmatch(rf"userspace_cni-{recorded_build().version}-cp3\d+-cp3\d+-linux_\w+\.whl", made.wheel.name)


def test_metadata(made: Made) -> None:
    """Version and licence are the project's, the description is the README as Markdown, and no address is invented."""
    with ZipFile(made.wheel) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        told = message_from_bytes(wheel.read(name))
    assert (told["Version"], told["License-Expression"]) == (recorded_build().version, "Apache-2.0")
    assert (told["Description-Content-Type"], told.get_all("Project-URL")) == ("text/markdown", None)
    body = told.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert body.decode().strip() == (dist.ROOT / "README.md").read_text().strip()


def test_version(program: Path) -> None:
    """The installed program knows the build, which the archive has recorded and the wheel has from it."""
    told = json.loads(run(program, "--version", "--json").stdout)
    assert (told["commit"], told["committed"], told["reason"]) == (*BUILT.values(), "")
    assert told["version"] == recorded_build().version


def test_the_c_of_the_fast_path(program: Path) -> None:
    """The compiled modules load, and are the wheel's."""
    script = """
import userspace_cni.fastpath._frames as frames, userspace_cni.fastpath._native as rings, userspace_cni.linux._native as paths
print(frames.__file__, rings.__file__, paths.__file__)
"""
    done = run(program.with_name("python"), "-c", script)
    assert done.returncode == 0, done.stderr
    assert all(Path(file).is_relative_to(program.parents[1]) for file in done.stdout.split())


def test_every_module_finds_what_it_imports(program: Path) -> None:
    """Everything that is imported, at start or at its first use, is in the wheel with all its imports."""
    script = """
import importlib, pkgutil, sys, localdb, userspace_cni
for package in (localdb, userspace_cni):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith((".__main__", ".extension")):
            importlib.import_module(module.name)
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] in sys.argv[1:]]
print(*{module.__spec__.origin for module in ours if module.__spec__}, sep="\\n")
"""
    argv = [str(program.with_name("python")), "-c", script, "userspace_cni", "localdb", "kubevirt"]
    done = subprocess.run(argv, env=environment(), cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert len(files) > 100
    assert [file for file in files if not Path(file).is_relative_to(program.parents[1])] == []


def test_the_definition_of_routes(program: Path) -> None:
    """It is in the wheel, as a file of its own."""
    done = run(program, "routes", "manifests")
    assert (done.returncode, "name: routes.k8s.ovn.org" in done.stdout) == (0, True), done.stderr


@contextmanager
def agent(program: Path, environ: dict[str, str], directory: Path) -> Iterator[None]:
    """The agent, once it serves; it must end well when it is told to."""
    log = directory / "log"
    with log.open("wb") as told:
        process = subprocess.Popen([program, "agent"], env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=told, stderr=told)
    try:

        def answers() -> tuple[int, bytes] | None:
            assert process.poll() is None, log.read_text()
            with suppress(OSError):
                return get(f"{directory}/RUN/agent.sock", "/healthz")
            return None

        status, body = wait_until(answers, what="the agent to serve")
        assert (status, json.loads(body)) == (
            200,
            {"version": recorded_build().version, "commit": BUILT["BUILD_COMMIT"], "problems": []},
        )
        assert f"build={recorded_build().version} (commit {BUILT['BUILD_COMMIT']} of 2026-11-28)" in log.read_text().replace(
            '"', ""
        )
        yield
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_verb_through_the_installed_plugin(program: Path) -> None:
    """The agent of the wheel answers a verb that the wheel's static binary hands to it: no switch answers."""
    with TemporaryDirectory(prefix="uc-") as directory:
        own = {f"USERSPACE_CNI_{name}_DIR": f"{directory}/{name}" for name in ("STATE", "RUN", "SHORT", "KUBELET")}
        away = {"USERSPACE_CNI_OVSDB": f"unix:{directory}/no-db.sock", "OVS_RUNDIR": directory}
        config = Path(directory) / "config.toml"
        config.touch()
        settings = {**own, **away, "USERSPACE_CNI_CONFIG": str(config)}
        installed = run(program, "install", f"--bin-dir={directory}/bin", **settings)
        assert installed.returncode == 0, installed.stderr
        plugin = Path(directory) / "bin" / "userspace"
        build = f"{recorded_build().version} (commit {BUILT['BUILD_COMMIT']} of 2026-11-28)"
        assert run(plugin, "--version").stdout == f"userspace-cni {build}\n"
        with agent(program, environment(**settings), Path(directory)):
            network = b'{"cniVersion": "1.1.0", "name": "net", "type": "userspace"}'
            argv, environ = [str(plugin)], {"CNI_COMMAND": "STATUS"}
            done = subprocess.run(argv, env=environ, cwd="/", input=network, capture_output=True, timeout=60, check=False)
        told = json.loads(done.stdout)
        assert (done.returncode, told["code"], "no-db.sock" in done.stdout.decode()) == (1, 50, True), told

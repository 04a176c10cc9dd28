"""The wheel in the agent's image is built from the files that its Dockerfile copies and from nothing else, installed and run.

The libraries that it needs are the tests' own; test_agent_image shows that the image has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.node.agent import get
from tests.lab.runtimes.dockerfile import AGENT, BUILD, copies, lay_out
from tests.lab.switch.switch import wait_until

SITE = Path(pytest.__file__).parents[1]
"""Where the tests' own libraries are. On PYTHONPATH a .pth file in it, as that of the project's own checkout, does nothing."""
QUIET = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


def pip(*arguments: str | Path) -> None:
    """Run pip; its output is the failure's text."""
    argv = [sys.executable, "-m", "pip", *map(str, arguments)]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`userspace-cni` in a virtual environment that has the image's wheel."""
    top = tmp_path_factory.mktemp("image")
    source, wheels, venv = top / "src", top / "wheels", top / "venv"
    lay_out([copy for copy in copies(AGENT) if copy.stage == BUILD], source)
    pip("wheel", *QUIET, "--no-build-isolation", "--wheel-dir", wheels, source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    [wheel] = wheels.iterdir()
    python = venv / "bin" / "python"
    pip("--python", python, "install", *QUIET, "--no-warn-script-location", "--constraint", source / "constraints.txt", wheel)
    return venv / "bin" / "userspace-cni"


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that has the wheel and the libraries, and nothing of the checkout."""
    return {"PATH": os.defpath, "PYTHONPATH": str(SITE), **more}


def test_version(program: Path) -> None:
    """The command line starts."""
    done = subprocess.run([program, "--version"], env=environment(), cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("userspace-cni ")


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
    argv = [str(program), "routes", "manifests"]
    done = subprocess.run(argv, env=environment(), cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "name: routes.k8s.ovn.org" in done.stdout) == (0, True), done.stderr


def test_agent(program: Path) -> None:
    """Without a switch the agent serves on its socket, and ends when it is told to."""
    with TemporaryDirectory(prefix="uc-") as directory:
        own = {f"USERSPACE_CNI_{name}_DIR": f"{directory}/{name}" for name in ("STATE", "RUN", "SHORT", "KUBELET")}
        away = {"USERSPACE_CNI_OVSDB": f"unix:{directory}/no-db.sock", "OVS_RUNDIR": directory}
        config = Path(directory) / "config.toml"
        config.touch()
        environ = environment(**own, **away, USERSPACE_CNI_CONFIG=str(config))
        log = Path(directory) / "log"
        with log.open("wb") as told:
            agent = subprocess.Popen([program, "agent"], env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=told, stderr=told)
        try:

            def answers() -> tuple[int, bytes] | None:
                assert agent.poll() is None, log.read_text()
                with suppress(OSError):
                    return get(f"{directory}/RUN/agent.sock", "/healthz")
                return None

            status, body = wait_until(answers, what="the agent to serve")
            assert (status, b'"problems": []' in body) == (200, True)
            agent.terminate()
            assert agent.wait(60) == 0, log.read_text()
        finally:
            agent.kill()
            agent.wait()

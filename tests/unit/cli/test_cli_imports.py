"""What a start of the command line imports: only the called command, and only the libraries that it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.lab.commands import walk
from tests.unit.cli.test_cli_streams import environ
from userspace_cni.cli.deferred import DeferredCommand

ROOT = Path(__file__).parents[3]
STORE = frozenset(("_cffi_backend", "localdb"))
"""What reading records needs: the store, and the binding of our C."""
OTHERS = ("google", "grpc", "kubernetes", "prometheus_client", "psutil", "pyroute2", "rich", "urllib3", "yaml")
LIBRARIES = STORE | {"click", "ovs", "ovsdbapp", *OTHERS}
"""The libraries in pyproject.toml under their import names, and the store."""
SWITCH = STORE | {"ovs"}

HELP = {
    "capture": {"_cffi_backend"},
    "doctor": STORE,
    "enter": STORE,
    "gateway": STORE,
    "gateway status": STORE,
    "gc": {"localdb"},
    "kubevirt define": {"yaml"},
    "kubevirt doctor": {"_cffi_backend"},
    "kubevirt lint": {"yaml"},
    "kubevirt manifests": {"yaml"},
    "lint": {"yaml"},
    "load": {"_cffi_backend"},
    "network": STORE,
    "nic-to-bridge": STORE,
    "ovn check": {"ovs"},
    "ovn init-cluster": {"ovs"},
    "ovn init-gateway": {"ovs"},
    "ovn init-node": {"ovs"},
    "ovn nic-to-bridge": STORE,
    "ovn remove-cluster": {"ovs"},
    "ovn remove-gateway": {"ovs"},
    "ovn remove-node": {"ovs"},
    "ovn status": {"ovs"},
    "ovn trace": {"ovs"},
    "ping": {"_cffi_backend"},
    "probe": {"_cffi_backend"},
    "routes apply": STORE | {"yaml"},
    "routes check": STORE,
    "routes explain": STORE,
    "routes flush": STORE,
    "routes list": STORE,
    "routes manifests": {"yaml"},
    "setup dpdk": STORE,
    "status": {"localdb"},
    "support": {"yaml"},
    "uninstall": STORE,
    "uplink": STORE,
    "uplink add": STORE,
    "uplink remove": STORE,
    "uplink status": STORE,
    "why": STORE,
}
"""What a command's module imports beside click, by the command's words; nothing for those not listed."""
CALLS = {
    "": (0, set()),
    "--version": (0, {"click"}),
    "--help": (0, {"click"}),
    "nosuch": (2, {"click"}),
    "kubevirt": (2, {"click"}),
    "routes": (2, {"click"}),
    "list": (0, STORE | {"click"}),
    "list --json": (0, STORE | {"click"}),
    "show nosuch": (1, STORE | {"click"}),
    "agent probe healthz": (3, STORE | {"click"}),
    "network": (0, STORE | {"click"}),
    "uplink status": (0, STORE | {"click"}),
    "gateway status": (0, STORE | {"click"}),
    "routes list": (2, STORE | {"click"}),
    "routes manifests": (0, {"click", "yaml", "_cffi_backend"}),
    "kubevirt manifests vm": (0, {"click", "yaml"}),
    "lint deploy/examples/pair.yaml": (0, {"click", "yaml"}),
    "check": (0, SWITCH | {"click"}),
    "status": (3, SWITCH | {"click", "rich"}),
}
"""Exit code on a node that has neither agent, switch nor records, and the libraries that are imported then."""
SHARED = {
    "doctor": {"userspace_cni.cli.node.status"},
    "nic-to-bridge": {"userspace_cni.cli.network.uplink_commands", "userspace_cni.cli.network.network_status"},
    "ovn nic-to-bridge": {"userspace_cni.cli.network.uplink_commands", "userspace_cni.cli.network.network_status"},
    "uninstall": {"userspace_cni.cli.node.gc"},
    "uplink": {"userspace_cni.cli.network.network_status"},
}
"""Modules of other commands by the command that works with them."""
LIBRARY = (
    "asyncio",
    "ctypes",
    "dataclasses",
    "http.client",
    "importlib.metadata",
    "ipaddress",
    "json",
    "logging",
    "ssl",
    "tomllib",
)
"""Slow parts of the standard library, which this file does not judge."""
PROGRAM = f"""
import {", ".join(LIBRARY)}
import os, sys
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for fd, of in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(of, fd)
    os.environ.update(request["environ"])
    sys.argv[:] = ["userspace-cni", *request["arguments"]]
    from userspace_cni.__main__ import main
    code = main()
    sys.stderr.write("\\n" + " ".join(sys.modules))
    sys.exit(code)
"""
"""A program that, for each line of stdin, runs the command line in a forked process and prints its exit code."""


class Starts:
    """Starts of the command line, each in a process of its own that has imported nothing but parts of the standard library."""

    def __init__(self) -> None:
        argv = [sys.executable, "-c", PROGRAM]
        self._server = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, directory: Path, *arguments: str) -> tuple[int, frozenset[str]]:
        """Start it on a node without agent, switch and records: its exit code, and the modules that it imported."""
        assert self._server.stdin
        assert self._server.stdout
        output = directory / "output"
        request = {"output": str(output), "environ": environ(directory), "arguments": arguments}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        said = output.read_text()
        assert "Traceback" not in said, said
        return code, frozenset(said.splitlines()[-1].split())

    def stop(self) -> None:
        """End the process from which they are forked."""
        self._server.communicate(timeout=60)
        assert self._server.returncode == 0


@pytest.fixture(scope="module")
def starts() -> Iterator[Starts]:
    made = Starts()
    yield made
    made.stop()


ALL = {words: (listed, itself) for words, listed, itself in walk()}


def module_of(command: click.Command) -> str:
    assert command.callback is not None
    return command.callback.__module__


@pytest.mark.parametrize("words", ALL)
def test_a_command_imports_itself(tmp_path: Path, starts: Starts, words: str) -> None:
    """The module of a command imports its libraries, and no other command but those that it works with."""
    code, modules = starts.start(tmp_path, *words.split(), "--help")
    assert code == 0
    assert modules & LIBRARIES == {"click"} | HELP.get(words, set())
    path = words.split()
    own = {module_of(ALL[" ".join(path[:end])][1]) for end in range(1, len(path) + 1)}
    assert own <= modules
    others = {module_of(itself) for _, itself in ALL.values()} - own
    assert modules & others == SHARED.get(words, SHARED.get(path[0], set())) - own


@pytest.mark.parametrize("call", CALLS)
def test_a_call_imports_what_it_needs(tmp_path: Path, starts: Starts, call: str) -> None:
    """By its end a call has imported nothing that it does not use: lists of commands need no command, pages no switch."""
    expected, libraries = CALLS[call]
    code, modules = starts.start(tmp_path, *call.split())
    assert (code, modules & LIBRARIES) == (expected, libraries)


@pytest.mark.parametrize("words", [words for words, (listed, _) in ALL.items() if isinstance(listed, DeferredCommand)])
def test_a_command_is_what_its_group_says(words: str) -> None:
    """A command has the name that its group gives it.

    Its line of help is in one place: the group, or the beginning of its help.
    """
    listed, itself = ALL[words]
    assert itself.name == listed.name == words.rsplit(maxsplit=1)[-1]
    assert itself.short_help is None
    assert listed.short_help or [listed.get_short_help_str(room) for room in range(10, 120)] == [
        itself.get_short_help_str(room) for room in range(10, 120)
    ]

"""Helpers for the tests of the specification: they judge a call, and start, stop and kill the plugin as a process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.lab.node.node import CONTAINER, Node
from tests.lab.node.served import ServedNode
from tests.lab.node.stored import stored
from tests.lab.runtimes.delegates.scripting import Scripted
from tests.lab.runtimes.runtime import Call
from tests.lab.switch.switch import Switch, wait_until

SUPPORTED = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
OTHER = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
STRANGER = "f" * 64
PORT = f"{CONTAINER[:12]}-net1"
LEASED = {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}]}


def succeeded(call: Call) -> dict[str, Any]:
    """The result of an ADD or the answer to VERSION; {} for a verb that prints nothing."""
    assert call.status == 0, (call.stdout, call.stderr)
    if call.command in ("ADD", "VERSION"):
        return call.document
    assert call.stdout == b""
    return {}


def refused(call: Call, code: int, *words: str) -> dict[str, Any]:
    """The error of a call that failed with `code`; its msg or details have to contain each of `words`."""
    assert call.status == 1, (call.status, call.stdout, call.stderr)
    assert call.stdout, call.stderr
    error = call.document
    assert error["code"] == code, error
    text = f"{error['msg']} {error.get('details', '')}"
    for word in words:
        assert word in text
    return error


def refused_soon(calling: Callable[[], Call], code: int, *words: str, again: Callable[[], object] = lambda: None) -> None:
    """As `refused`, for a call after changes of the switch, of which an agent hears a moment later.

    `again` makes the changes once more if the call succeeded, because the agent may have put the switch right before the call.
    """

    def telling() -> Call | None:
        made = calling()
        if not made.status:
            again()
        return made if all(word in made.stdout.decode() for word in words) else None

    refused(wait_until(telling, what=f"{words} to be told"), code, *words)  # that one: the agent puts back what it can


def refused_late(
    node: Node, calling: Callable[[], Call], code: int, *words: str, met: Callable[[], bool] = lambda: True
) -> dict[str, Any]:
    """As `refused`, for a call that meets something that hangs; it has a second for that.

    On a busy machine a second may pass before the call gets that far: then it is made again with more time. `met` says whether it
    got there, where the answer does not show it.
    """
    for seconds in ("1", "4", "16", "64"):
        node.settings["USERSPACE_CNI_DEADLINE_S"] = seconds
        made = calling()
        if all(word in made.stdout.decode() for word in words) and met():
            break
    del node.settings["USERSPACE_CNI_DEADLINE_S"]
    return refused(made, code, *words)


def switch_of(node: Node) -> Switch:
    """The switch of a node that was made by the fixture `node`."""
    assert node.switch
    return node.switch


def scripted(node: Node, name: str = "scripted") -> Scripted:
    """A scripted IPAM plugin beside our plugin: it supports every version and grants one address."""
    delegate = Scripted(node.bin, name)
    delegate.tell("VERSION", answer={"cniVersion": "1.1.0", "supportedVersions": list(SUPPORTED)})
    return delegate.tell("ADD", answer=LEASED)


def ipam(delegate: Scripted) -> dict[str, Any]:
    return {"type": delegate.name}


def records(node: Node) -> list[dict[str, Any]]:
    """The records of attachments, in the form that this version writes."""
    return stored(node.state, node.directory / "run")


def row_of(node: Node, name: str = PORT) -> dict[str, Any]:
    """The columns of an interface that change only when a program sets them; {} if there is no such interface."""
    columns = ("_uuid", "name", "type", "options", "external_ids", "mtu_request", "ofport", "error")
    row = switch_of(node).interface(name)
    return {column: row[column] for column in columns} if row else {}


def tree(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every path below a directory with mode, size and time of its last change of content; but for the node's own settings."""
    paths = ((str(path), path.lstat()) for path in sorted(directory.rglob("*")) if path.name != "config.toml")
    return {path: (facts.st_mode, facts.st_size, facts.st_mtime_ns) for path, facts in paths}


def without(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def start(node: Node, environ: Mapping[str, str], stdin: bytes, **options: Any) -> subprocess.Popen[bytes]:
    """Start the plugin as a process and write its stdin, without waiting for its end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([node.plugin], stdin=pipe, env=dict(environ), **{"stdout": pipe, "stderr": pipe, **options})
    assert process.stdin
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: subprocess.Popen[bytes], command: str) -> Call:
    """Wait for a started plugin to end; its answer."""
    stdout, stderr = process.communicate(timeout=60)
    return Call("userspace", command, b"", stdout or b"", stderr or b"", process.returncode, 0.0, 0.0)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL, as a runtime does at its deadline."""
    process.kill()
    process.communicate(timeout=60)


@contextmanager
def held(delegate: Scripted, verb: str, **afterwards: Any) -> Iterator[Callable[[], int]]:
    """Within the block, `verb` of the scripted plugin does not end; the given function waits for that call and returns its
    process id.

    At the end, processes of such calls are killed if they still run. From then on the verb does what `afterwards` says.
    """
    calls = len(delegate.calls())
    delegate.tell(verb, hang=True)

    def newest() -> int:
        return int(wait_until(lambda: _newest(delegate, verb, calls), what=f"{verb} of {delegate.name}"))

    try:
        yield newest
    finally:
        delegate.tell(verb, **afterwards)
        for entry in delegate.calls()[calls:]:
            if entry["command"] == verb:
                with suppress(ProcessLookupError):
                    os.kill(entry["pid"], signal.SIGKILL)


def _newest(delegate: Scripted, verb: str, since: int) -> int:
    return next((entry["pid"] for entry in reversed(delegate.calls()[since:]) if entry["command"] == verb), 0)


@contextmanager
def paused_vswitchd(switch: Switch) -> Iterator[None]:
    """Within the block ovs-vswitchd is stopped: it reads no database and answers nothing."""
    switch.pause_vswitchd()
    try:
        yield
    finally:
        switch.resume_vswitchd()


@contextmanager
def paused_ovsdb(switch: Switch) -> Iterator[None]:
    """Within the block ovsdb-server is stopped: it accepts connections and answers nothing."""
    switch.pause_ovsdb()
    try:
        yield
    finally:
        switch.resume_ovsdb()


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """A directory on a file system that takes no writes."""
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)
        yield
    finally:
        # lazily: an agent that was started meanwhile holds its lock there
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def finish_by_others(node: Node) -> None:
    """Call for another container until the work that earlier calls left is finished; each call does a little of it.

    An agent does this work on its tick by itself; here it is asked to.
    """

    def finished() -> bool:
        if isinstance(node, ServedNode):
            node.reconcile()
        succeeded(node.run("DEL", node.network(), container=STRANGER))
        return not records(node)

    wait_until(finished, what="no record is left")


def away(node: Node) -> dict[str, str]:
    """The setting that makes OVSDB unreachable for one call."""
    return {"USERSPACE_CNI_OVSDB": f"unix:{node.directory}/no-such-db.sock"}

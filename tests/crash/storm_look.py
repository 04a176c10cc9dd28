"""What is on the node, in the sentences in which `storm_pods` describes the parts of an attachment.

Everything is read by the means of the kernel and Open vSwitch, never through the code under test.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cni.spec import switch_of
from tests.crash.storm_pods import ADMINS_BRIDGE, Pods
from tests.lab.node.links import left_of_ours, links
from tests.lab.node.node import mounts_below
from tests.lab.node.stored import live, stored

STANDING = frozenset({f"bridge {ADMINS_BRIDGE}"})
"""Sentences that are true without any attachment."""
_PORT = re.compile(r"[0-9a-f]{12}-net[0-9]")
_LISTENER = re.compile(r"ino:([0-9]+) dev:0/([0-9]+)")
"""As `ss` prints it: the whole device number behind the slash."""


@dataclass(frozen=True)
class Sight:
    """Sentences that were found, and details that explain one of them or its absence."""

    found: frozenset[str]
    why: dict[str, str]


def look(pods: Pods) -> Sight:
    """List everything that attachments may leave. Changes meanwhile may be seen in part."""
    why: dict[str, str] = {}
    things = Counter(
        thing
        for part in (_switch(pods, why), _beside_ports(pods), _mounts(pods), _directories(pods), _state(pods))
        for thing in part
    )
    return Sight(frozenset(thing if times == 1 else f"{thing}, {times} times" for thing, times in things.items()), why)


def _switch(pods: Pods, why: dict[str, str]) -> Iterator[str]:
    switch = switch_of(pods.node)
    interfaces = {row["name"]: row for row in switch.rows("Interface")}
    for bridge in switch.bridges():
        yield f"bridge {bridge}"
        for port in switch.ports(bridge):
            yield f"port {port} on {bridge}"
            row = interfaces.get(port, {})
            if isinstance(row.get("ofport"), int) and row["ofport"] > 0 and not row["error"]:
                yield f"open port {port}"
            else:
                why[f"open port {port}"] = f"ofport {row.get('ofport')}, error {row.get('error')}"
    for path in Path(switch.rundir).iterdir():
        if _PORT.fullmatch(path.name):
            yield f"socket {path}, which is not placed"


def _beside_ports(pods: Pods) -> Iterator[str]:
    """Rows that ports refer to, and what kernel links have in the switch's network namespace."""
    switch = switch_of(pods.node)
    for table in ("QoS", "Queue", "Mirror"):
        for row in switch.rows(table):
            marks = row["external_ids"]
            yield f"{table} row of {marks.get('container-id')}@{marks.get('ifname')}"
    interfaces = {row["name"] for row in switch.rows("Interface")}
    for name, each in links(switch.netns).items():
        if each.get("linkinfo", {}).get("info_kind") == "tun" and name not in interfaces:
            yield f"link {name}, which no row has"
    left = left_of_ours(switch.netns)
    for name in left["host ends"]:
        yield f"host end {name}"
    for name in left["guards"]:
        yield f"guard of {name}"


def _mounts(pods: Pods) -> Iterator[str]:
    others = {str(pods.node.state), *pods.volumes_in_memory}
    for point in mounts_below(pods.node.directory):
        if point not in others:
            yield f"mount {point}"


def _directories(pods: Pods) -> Iterator[str]:
    node = pods.node
    bases = [node.shared, pods.aside, pods.devices]
    bases += [volume for volume in node.kubelet.glob("pods/*/volumes/kubernetes.io~empty-dir/shared-dir") if volume.is_dir()]
    listeners = _listeners(switch_of(node).vswitchd_pid)
    for base in bases:
        for path in _below(base):
            facts = path.lstat()
            if not stat.S_ISSOCK(facts.st_mode):
                yield f"{'directory' if stat.S_ISDIR(facts.st_mode) else 'file'} {path}"
                continue
            yield f"socket {path}"
            if (facts.st_ino, facts.st_dev) in listeners:
                yield f"the switch listens at {path}"
    for path in node.short.iterdir() if node.short.is_dir() else ():
        yield f"directory {path}"  # what is in it belongs to what is mounted there


def _below(base: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(base):
        for name in directories + files:
            yield Path(directory) / name


def _listeners(pid: int) -> set[tuple[int, int]]:
    """Inode and device of each socket at which a process of the switch's network namespace accepts.

    Nothing connects: a port would take that for its application, and ovs-vswitchd hangs after many of those.
    """
    argv = ["nsenter", f"--net=/proc/{pid}/ns/net", "ss", "-xlHe"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return {(int(inode), int(device)) for inode, device in _LISTENER.findall(listed)}


def _state(pods: Pods) -> Iterator[str]:
    state, run = pods.node.state, pods.node.directory / "run"
    for record in stored(state, run):
        yield f"record {record['container_id']}@{record['ifname']} {record['state']}"
    for path in [*live(run, "places"), *_files(state / "places")]:
        entry = json.loads(path.read_text())
        for holder in entry["value"]["holders"]:
            yield f"holder {holder} of {entry['key']}"
    for path in _files(state / "spool"):
        yield f"spooled DEL {path.name}"
    for path in _files(state / "quarantine"):
        yield f"put aside: {path.name}"
    for path in pods.node.ipam_dir.rglob("*"):
        if path.name[0].isdigit() and path.is_file():
            yield "lease of " + "@".join(path.read_text().split())
    for path in _files(state / "runs"):
        yield f"record of a run {path.name}"
    if are_held(run / "locks" / "bytes"):
        yield "locks held"


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file()) if directory.is_dir() else []


def are_held(path: Path) -> bool:
    """Whether any process holds one of the locks in the file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            return True
    return False

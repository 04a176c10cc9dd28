"""Removing the plugin from a node that had an agent leaves nothing of it, and takes nothing from a living pod."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.network.dual_pod import DualPod, dual_pod
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node, mounts_below
from tests.lab.node.served import forked_agent
from tests.lab.runtimes.cached import cached, routing
from tests.lab.switch.switch import wait_until
from userspace_cni.cli.node.seccomp import install_profile

UID = "7d1a2c00-0000-4000-8000-000000000002"
POD = f"IgnoreUnknown=1;K8S_POD_UID={UID}"


def uninstall(node: Node, *options: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command on that node."""
    done = run_command(node.environ, "uninstall", f"--bin-dir={Path(node.plugin).parent}", *options)
    return done.returncode, done.stdout, done.stderr


def profiles(node: Node) -> Path:
    """The directory of our seccomp profile."""
    return Path(node.environ["USERSPACE_CNI_KUBELET_DIR"]) / "seccomp" / "userspace-cni"


def left(node: Node) -> list[str]:
    places = (Path(node.plugin), node.state, node.directory / "run", node.short, profiles(node))
    return [str(path) for path in places if path.exists()]


def attached(node: Node, sandbox: str) -> None:
    """A pod in the sandbox is attached, with an address."""
    node.empty_dir(UID)
    assert node.run("ADD", node.network("1.0.0", ipam=node.host_local()), sandbox, CNI_ARGS=POD).status == 0


def test_the_seccomp_profile_goes(node: Node) -> None:
    """The profile for DPDK, and what a killed `install` left beside it, are removed.

    An administrator's profile stays, and is named.
    """
    install_profile(str(profiles(node).parent))
    (profiles(node) / ".dpdk.json.4711").touch()
    own = profiles(node) / "own.json"
    own.touch()
    code, _, told = uninstall(node)
    assert (code, f"left alone: {own.parent}: in it is own.json" in told) == (0, True)
    assert list(own.parent.iterdir()) == [own]
    own.unlink()
    assert uninstall(node)[0] == 0
    assert left(node) == []
    assert profiles(node).parent.is_dir()


def test_a_profile_that_was_put_elsewhere(node: Node, tmp_path: Path) -> None:
    """`--seccomp-dir` means the same as at `install`; a directory without our profile is named, also the second time."""
    ours = install_profile(str(tmp_path / "one")).parent
    (tmp_path / "two").mkdir()
    for _ in range(2):
        code, told, notes = uninstall(node, f"--seccomp-dir={tmp_path}/one/", f"--seccomp-dir={tmp_path}/two")
        assert (code, told, ours.exists()) == (0, "", False)
        assert f"no seccomp profile of ours is in {tmp_path}/two" in notes
    assert f"no seccomp profile of ours is in {tmp_path}/one" in notes
    assert (tmp_path / "one").is_dir()


def test_a_directory_that_is_not_there(node: Node, tmp_path: Path) -> None:
    """A named directory that is missing, an empty name, and a file are refused before anything is removed."""
    install_profile(str(profiles(node).parent))
    before = left(node)
    assert before != []
    (tmp_path / "file").touch()
    loop(tmp_path / "loop")
    problems = {"nowhere": "No such file", "file": "Not a directory", "file/below": "Not a directory", "loop": "Too many levels"}
    for option in ("--bin-dir", "--seccomp-dir"):
        for name, problem in problems.items():
            code, told, notes = uninstall(node, f"{option}={tmp_path}/{name}")
            assert (code, told, left(node)) == (2, "", before)
            assert f"{option} {tmp_path}/{name}: {problem}" in notes
        assert uninstall(node, f"{option}=")[0] == 2
    assert left(node) == before
    (profiles(node) / "dpdk.json").unlink()
    profiles(node).rmdir()
    profiles(node).parent.rmdir()
    usual = ("--bin-dir=/var/snap/microk8s/current/opt/cni/bin", f"--seccomp-dir={profiles(node).parent}")
    assert uninstall(node, *usual)[:2] == (0, "")
    assert left(node) == []


def test_a_directory_without_a_plugin(node: Node, tmp_path: Path) -> None:
    """A directory without our plugin is named, also when it was removed before; another program's file in it is named as that."""
    (tmp_path / "empty").mkdir()
    code, _, notes = uninstall(node, f"--bin-dir={tmp_path}/empty")
    where = Path(node.plugin).parent
    assert (code, f"no plugin of ours is in {tmp_path}/empty" in notes, f"in {where}" in notes) == (0, True, False)
    code, _, notes = uninstall(node)
    assert (code, f"no plugin of ours is in {where}" in notes) == (0, True)
    Path(node.plugin).write_text("#!/bin/sh\n")
    code, _, notes = uninstall(node)
    assert (code, "no plugin of ours" in notes, f"left alone: {node.plugin}: it is not ours" in notes) == (0, False, True)


def test_not_while_something_is_attached(node: Node, sandbox: str) -> None:
    """Nothing is removed while the agent serves, and then while a pod is attached; after its DEL nothing is left."""
    with forked_agent(node) as agent:
        attached(node, sandbox)
        code, _, told = uninstall(node)
        [holder] = (node.state / "agent.lock").read_text().splitlines()
        assert f"process {agent.pid}, " in holder
        assert (code, told) == (3, f"Error: other work on this node's records goes on: {holder}; end that first\n")
    code, told, _ = uninstall(node)
    assert (code, "net1: attached to net" in told, len(told.splitlines())) == (1, True, 1)  # nothing of its mount
    assert Path(node.plugin).exists()
    assert mounts_below(node.short) != []
    assert node.run("DEL", node.network("1.0.0", ipam=node.host_local()), sandbox).status == 0  # kept: no agent answers
    assert uninstall(node)[:2] == (0, "")
    assert left(node) == []
    assert node.leftovers() == {}
    assert uninstall(node)[:2] == (0, "")
    assert left(node) == []


@contextmanager
def routed(node: Node, directory: Path, **entry: str) -> Iterator[tuple[DualPod, list[str]]]:
    """A pod of another CNI plugin with a route of an agent that has ended; and the routes that it had before."""
    cache, file, settings = routing(directory)
    file.write_text(json.dumps([entry]))
    with dual_pod() as pod:
        before = pod.routes()
        cached(cache, pod.path)
        node.settings.update(settings)
        with forked_agent(node):
            wait_until(lambda: len(pod.routes()) > len(before), what="the route of ours")
            wait_until((node.state / "routes.json").exists, what="what is known to be kept")
        yield pod, before


def test_routes_in_pods_go_with_it(node: Node, tmp_path: Path) -> None:
    """The routes that an agent kept in other plugins' pods are removed, and the agent's notes of them."""
    with routed(node, tmp_path, route="default", dev="eth1", via="10.2.0.1") as (pod, before):
        node.settings["USERSPACE_CNI_ROUTE_PROTOCOL"] = "200"  # no agent has run since
        assert uninstall(node)[:2] == (0, "")
        assert pod.routes() == before
    assert left(node) == []


def test_a_pod_whose_routes_cannot_be_taken_out(node: Node, tmp_path: Path) -> None:
    """It is named each time until its routes are out: the notes of it stay after a failed try."""
    with routed(node, tmp_path, route="172.16.0.0/16", dev="eth1") as (pod, before):
        many = "".join(f"route add 10.{number >> 8}.{number & 255}.0/24 dev eth1\n" for number in range(1 << 15))
        batch = ["nsenter", f"--net={pod.path}", "ip", "-batch", "-"]
        subprocess.run(batch, input=many, text=True, check=True)
        for _ in range(2):
            code, told, _ = uninstall(node)
            assert (code, "default/web-0: its routes of ours" in told) == (1, True)
        subprocess.run(batch, input=many.replace("add", "del"), text=True, check=True)
        assert uninstall(node)[:2] == (0, "")
        assert pod.routes() == before
    assert left(node) == []


def test_a_try_that_died_once_the_routes_were_out(node: Node, tmp_path: Path) -> None:
    """The notes still exist, and the next try removes them."""
    with routed(node, tmp_path, route="172.16.0.0/16", dev="eth1") as (pod, before):
        pod.ip("route", "flush", "proto", "148")
        assert pod.routes() == before
        assert (node.state / "routes.json").exists()
        assert uninstall(node)[:2] == (0, "")
    assert left(node) == []


def test_a_pod_that_went_without_del(node: Node, tmp_path: Path) -> None:
    """The runtime's file of such a pod can stay for ever, and does not prevent the node from being clean."""
    with routed(node, tmp_path, route="172.16.0.0/16", dev="eth1") as (pod, _):
        pass
    assert not Path(pod.path).exists()
    assert uninstall(node)[:2] == (0, "")
    assert left(node) == []


def loop(path: Path) -> Path:
    """A link to itself, which no user can follow, not even root, who passes any mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)
    return path


def test_while_the_switch_cannot_be_asked(node: Node, sandbox: str) -> None:
    """The switch may have ports of ours: nothing is removed, and the command does not say that nothing is left.

    With --force the rest is removed.
    """
    with forked_agent(node):
        attached(node, sandbox)
        assert node.run("DEL", node.network("1.0.0", ipam=node.host_local()), sandbox).status == 0
    assert node.switch
    before = left(node)
    node.switch.stop_ovsdb()
    try:
        code, told, notes = uninstall(node)
        assert (code, told, left(node)) == (3, "", before)
        assert "the switch cannot be asked" in notes
        assert "nothing of ours is left" not in notes
        code, told, notes = uninstall(node, "--force")
        assert (code, told, left(node)) == (0, "", [])
        assert "nothing of ours is left on this node, as far as it could be asked" in notes
    finally:
        node.switch.restart_ovsdb()


def test_a_port_without_a_record_while_the_switch_cannot_be_asked(node: Node, sandbox: str) -> None:
    """Plugin and store identity stay, so that the next try finds the port as ours."""
    with forked_agent(node):
        attached(node, sandbox)
    for record in (node.state / "attachments").iterdir():
        record.unlink()
    assert node.switch
    node.switch.stop_ovsdb()
    try:
        assert uninstall(node)[0] == 1  # its mount is in the way, too
        assert Path(node.plugin).exists()
        assert (node.state / "identity").exists()
    finally:
        node.switch.restart_ovsdb()
    code, told, _ = uninstall(node)
    assert (code, "a port of ours without a record" in told) == (1, True)
    assert uninstall(node, "--force")[:2] == (0, "")
    assert (left(node), node.switch.bridges()) == ([], [])


def test_places_that_cannot_be_looked_at(node: Node, sandbox: str) -> None:
    """An unreadable directory in which the former plugin's attachments may be prevents everything.

    An unreadable plugin that may be ours, and unreadable parts of the kubelet's directory, are named as not removed.
    """
    with forked_agent(node):
        attached(node, sandbox)
        assert node.run("DEL", node.network("1.0.0", ipam=node.host_local()), sandbox).status == 0
    before = left(node)
    legacy = loop(node.directory / "legacy")
    code, told, _ = uninstall(node)
    assert (code, f"{legacy}: " in told, left(node)) == (1, True, before)
    legacy.unlink()
    plugin, sockets = loop(Path(node.plugin)), loop(node.kubelet / "device-plugins")
    code, told, notes = uninstall(node)
    assert (code, f"{plugin}: it cannot be looked at" in told, f"{sockets}: " in told) == (1, True, True)
    assert "this could not be removed" in notes
    plugin.unlink()
    sockets.unlink()
    assert uninstall(node)[:2] == (0, "")


def test_a_record_of_a_newer_version(node: Node, sandbox: str) -> None:
    """Its steps are unknown here: it is named, and stays with everything that is needed to undo it."""
    with forked_agent(node):
        attached(node, sandbox)
    [record] = (node.state / "attachments").glob("*.json")
    content = json.loads(record.read_text())
    assert node.run("DEL", node.network("1.0.0", ipam=node.host_local()), sandbox).status == 0
    assert uninstall(node)[:2] == (0, "")
    node.state.mkdir(mode=0o700)
    (node.state / "node").mkdir()
    newer = node.state / "node" / record.name
    newer.write_text(json.dumps({**content, "schema": content["schema"] + 1}))
    code, told, _ = uninstall(node)
    assert (code, f"{newer}: this version cannot read it" in told, newer.exists()) == (1, True, True)
    newer.unlink()
    assert uninstall(node)[:2] == (0, "")


def test_pods_of_which_nothing_can_be_read(node: Node, tmp_path: Path) -> None:
    """They may have routes of ours: the notes of these stay, and nothing of the installation is removed."""
    with routed(node, tmp_path, route="172.16.0.0/16", dev="eth1") as (pod, before):
        with_route, kept, cache = pod.routes(), left(node), tmp_path / "cni"
        cache.rename(tmp_path / "aside")
        loop(cache)
        code, told, _ = uninstall(node)
        assert (code, "routes of ours were not looked for" in told, left(node)) == (1, True, kept)
        assert (node.state / "routes.json").exists()
        assert pod.routes() == with_route
        cache.unlink()
        (tmp_path / "aside").rename(cache)
        assert uninstall(node)[:2] == (0, "")
        assert pod.routes() == before
    assert left(node) == []


def test_with_force(node: Node, sandbox: str) -> None:
    """With --force a living pod is detached: its port, mount and address are removed, its own directory stays."""
    with forked_agent(node):
        attached(node, sandbox)
    assert uninstall(node, "--force")[:2] == (0, "")
    assert left(node) == []
    assert node.leftovers() == {}
    assert mounts_below(node.short) == []


def test_what_is_not_ours_stays(node: Node, sandbox: str) -> None:
    """Another plugin of that name, a file beside the records, and one in a directory mounted there stay, and are named."""
    with forked_agent(node):
        attached(node, sandbox)
        assert node.run("DEL", node.network("1.0.0", ipam=node.host_local()), sandbox).status == 0
    foreign = node.state / "backup.tar"
    foreign.touch()
    Path(node.plugin).write_text("#!/bin/sh\n")
    code, told, notes = uninstall(node)
    assert (code, told) == (0, "")
    assert [name for name in (node.plugin, foreign.name) if name not in notes] == []
    assert foreign.exists()
    assert Path(node.plugin).exists()


def test_an_agent_that_ends_meanwhile_is_awaited(node: Node) -> None:
    """With --wait the command begins when the agent has ended."""
    with forked_agent(node) as agent:
        argv = [sys.executable, "-m", "userspace_cni", "uninstall", f"--bin-dir={Path(node.plugin).parent}", "--wait=60"]
        waiting = subprocess.Popen(argv, env=node.environ)
        wait_until(lambda: "userspace" in Path(f"/proc/{waiting.pid}/cmdline").read_text(), what="the command to run")
        assert agent.stop() == 0
        assert waiting.wait(60) == 0
    assert left(node) == []


def test_a_second_try_after_a_kill(node: Node, sandbox: str) -> None:
    """When the command was killed after the plugin, or among the records, the next run does the rest."""
    with forked_agent(node):
        attached(node, sandbox)
    assert uninstall(node)[0] == 1
    identity = (node.state / "identity").read_bytes()
    Path(node.plugin).unlink()
    (node.directory / "run" / "agent.sock.new").touch()
    assert uninstall(node, "--force")[:2] == (0, "")
    assert (left(node), node.leftovers()) == ([], {})
    node.state.mkdir(mode=0o700)
    (node.state / "identity").write_bytes(identity)
    (node.state / "spool").mkdir()
    assert uninstall(node)[:2] == (0, "")
    assert left(node) == []


def test_directories_of_others(node: Node) -> None:
    """When settings name directories of others, their files, empty directories and mounts stay."""
    run, state = node.directory / "others", node.state
    for path in ("live/medium", "devices", "sshd", "user"):
        (run / path).mkdir(parents=True)
    state.mkdir(mode=0o700)
    (state / "spool" / "cron").mkdir(parents=True)
    for file in (run / "live" / "medium" / "image", run / "devices" / "disk", run / "socket" / "kept", state / "spool" / "mail"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", run / "user"], check=True)
    (run / "user" / "1000").mkdir()
    before = sorted(run.rglob("*"))
    names = {"RUN_DIR": run, "SHORT_DIR": run, "SOCKET": run / "socket"}
    node.settings.update({f"USERSPACE_CNI_{name}": str(path) for name, path in names.items()})
    try:
        code, told, notes = uninstall(node, "--force")
        assert sorted(run.rglob("*")) == before
        assert (run / "user").is_mount()
    finally:
        subprocess.run(["umount", run / "user"], check=True)
    assert (code, told.splitlines()) == (1, [f"{run / 'socket'}: it is neither a socket nor a file, and is left alone"])
    assert f"left alone: {run / 'live'}: in it is medium" in notes
    assert sorted(path.name for path in state.rglob("*")) == ["cron", "mail", "spool"]

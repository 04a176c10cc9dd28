"""While the state directory cannot be written, a DEL keeps its promise, and nothing that it removed is made again."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.agent.living import LiveNode, port_of
from tests.cni.spec import read_only, refused, succeeded, switch_of
from tests.lab.kube.pods import Pod
from tests.lab.node.disks import fill, kept_full, small_disk
from tests.lab.node.node import CONTAINER, mounts_below
from tests.lab.node.stored import state_file
from tests.lab.switch.switch import wait_until

RESTART_S = 60


def network_of(live: LiveNode, mode: str) -> dict[str, Any]:
    """A network with addresses, and OVS in that role."""
    network = live.network("1.0.0", ipam=live.host_local())
    network["host"]["vhost"]["mode"] = mode
    return network


def without_state_disk(live: LiveNode) -> dict[str, list[str]]:
    """What is left, without the small disk itself."""
    found = live.leftovers()
    found["mounts"] = [point for point in found.get("mounts", []) if point != str(live.state)]
    return {kind: items for kind, items in found.items() if items}


@pytest.mark.parametrize("mode", ["client", "server"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "beside another"])
def test_del_on_a_full_disk_while_ovsdb_is_away(live: LiveNode, sandbox: str, mode: str, shared: bool) -> None:
    """What DEL removed is not made again, with a full disk or not, and the rest follows later.

    The pod's other interface stays.
    """
    network, switch, pod = network_of(live, mode), switch_of(live), Pod()
    live.empty_dir(pod.uid)
    with small_disk(live.state) as filler:
        live.start()
        if shared:
            succeeded(live.run("ADD", network, sandbox, CONTAINER, "net2", CNI_ARGS=pod.args))
        before = without_state_disk(live)
        succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
        switch.stop_ovsdb()
        try:
            wait_until(lambda: live.page("/readyz")[0] != 200, what="the agent to see it")
            with kept_full(filler):
                succeeded(live.run("DEL", network, sandbox, CNI_ARGS=pod.args))
                switch.restart_ovsdb()
                wait_until(lambda: not switch.rows("Port", f"name={port_of()}"), RESTART_S, "the port to go")
                live.tick(2)
                assert not switch.rows("Port", f"name={port_of()}")
        finally:
            switch.restart_ovsdb()
        fill(filler, 64)
        wait_until(lambda: without_state_disk(live) == before, RESTART_S, "the rest to go")
        live.tick(2)
        assert without_state_disk(live) == before
        if shared:
            succeeded(live.run("DEL", network, sandbox, CONTAINER, "net2", CNI_ARGS=pod.args))
        assert without_state_disk(live) == {}


@pytest.mark.parametrize("survives", [True, False], ids=["agent survives", "agent is killed"])
def test_del_in_a_directory_that_takes_no_writes(live: LiveNode, sandbox: str, survives: bool) -> None:
    """DEL answers 11 because its record stays, and no pass attaches again what it removed; the next DEL finishes."""
    network, switch, pod = network_of(live, "client"), switch_of(live), Pod()
    live.empty_dir(pod.uid)
    live.start()
    succeeded(live.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    with read_only(live.state):
        refused(live.run("DEL", network, sandbox), 11)
        if not survives:
            live.kill()
            live.start()
        live.tick(3)
        assert switch.bridges() == []
        assert mounts_below(live.directory) == [str(live.state)]
        refused(live.run("CHECK", {**network, "prevResult": {}}, sandbox), 102)
    succeeded(live.run("DEL", network, sandbox))
    live.await_clean()


@pytest.mark.parametrize("closed", ["run", "run/live"])
def test_what_cannot_be_marked_is_not_touched(live: LiveNode, sandbox: str, closed: str) -> None:
    """When neither state nor run directory can be written, DEL answers 11 and undoes nothing, so that nothing is half undone."""
    network = network_of(live, "client")
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    before = live.leftovers()
    live.kill()
    with read_only(live.state), read_only(live.directory / closed):
        call = live.run_standalone("DEL", network, sandbox)
        refused(call, 11)
    assert live.leftovers() == before
    succeeded(live.run_standalone("DEL", network, sandbox))
    live.await_clean()


def test_states_that_were_opened_to_others(live: LiveNode, sandbox: str) -> None:
    """The directory of the states counts as ours with any mode: it is closed again, and no verb fails because of it."""
    network = network_of(live, "client")
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    [states] = (live.directory / "run" / "live").iterdir()
    with read_only(live.state):
        refused(live.run("DEL", network, sandbox), 11)
        states.chmod(0o755)
        live.kill()
        live.start()
        refused(live.run("CHECK", {**network, "prevResult": {}}, sandbox), 102)
    succeeded(live.run("DEL", network, sandbox))
    assert states.stat().st_mode & 0o777 == 0o700
    live.await_clean()


def test_state_of_an_earlier_attachment_of_that_name(live: LiveNode, sandbox: str) -> None:
    """A state file that was left behind does not apply to a later attachment of the same container and interface."""
    network = network_of(live, "client")
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    path = state_file(live.directory / "run", live.state / "attachments" / f"{CONTAINER}@net1.json")
    assert path
    state = json.loads(path.read_text())
    state["value"] |= {"state": "deleting", "boottime_ns": state["value"]["boottime_ns"] - 1}
    path.write_text(json.dumps(state))
    live.tick(2)
    assert live.states() == ["deleting"]
    assert switch_of(live).ports("br-test")
    succeeded(live.run("DEL", network, sandbox))
    live.await_clean()
    assert not path.exists()


def test_states_that_are_lost(live: LiveNode, sandbox: str) -> None:
    """When the run directory is emptied, a living pod loses nothing: what is doubtful stays, and DEL removes it all."""
    network = network_of(live, "client")
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    before = switch_of(live).ports("br-test")
    shutil.rmtree(live.directory / "run" / "live")
    live.tick(3)
    assert (live.states(), switch_of(live).ports("br-test")) == (["ready"], before)
    live.kill()
    live.start()
    live.tick(3)
    assert switch_of(live).ports("br-test") == before
    succeeded(live.run("DEL", network, sandbox))
    live.await_clean()

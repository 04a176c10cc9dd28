"""A call is served by the agent that it is meant for, or refused by another one; it never reaches another agent's switch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.agent.living import LiveNode
from tests.cni.spec import finish, paused_vswitchd, start, succeeded, switch_of
from tests.lab.node.agent import GIVES_UP_SOON
from tests.lab.switch.switch import wait_until


def settings(node: LiveNode, *keys: str) -> dict[str, str]:
    """These settings of a node, as a call has them in its environment."""
    return {f"USERSPACE_CNI_{key}": node.environ[f"USERSPACE_CNI_{key}"] for key in keys}


def test_state_and_run_directory_of_another_agent(live: LiveNode, other: LiveNode, sandbox: str) -> None:
    """With STATE_DIR and RUN_DIR in its environment the installed binary calls the agent of a trial, and the agent that it was
    installed for is not called.

    The call prints that it goes elsewhere.
    """
    live.start()
    other.start()
    trial = settings(other, "STATE_DIR", "RUN_DIR")
    call = live.run("ADD", live.network(), sandbox, **trial)
    succeeded(call)
    assert (live.states(), other.states()) == ([], ["ready"])
    for path in (other.socket, live.socket, str(other.state), str(live.state)):
        assert path in call.stderr.decode()
    succeeded(live.run("DEL", live.network(), sandbox, **trial))
    other.require_clean()


def test_half_an_environment_is_refused(live: LiveNode, other: LiveNode, sandbox: str) -> None:
    """When only the state directory is another's, and the socket is not, the agent refuses the call and names both sides.

    Nothing is attached, and no DEL counts as done.
    """
    live.start()
    for verb in ("ADD", "DEL", "STATUS"):
        call = live.run(verb, live.network(), sandbox, USERSPACE_CNI_STATE_DIR=str(other.state))
        assert call.code == 7
        said = call.document["msg"] + call.document["details"]
        for word in (live.socket, str(live.state), str(other.state), "USERSPACE_CNI_STATE_DIR", "USERSPACE_CNI_RUN_DIR"):
            assert word in said
    assert "br-test" not in switch_of(live).bridges()
    live.require_clean()
    other.require_clean()


def test_another_spelling_of_the_same_directory(live: LiveNode, sandbox: str) -> None:
    """A link to the state directory counts as the same directory."""
    live.start()
    link = live.directory / "link"
    link.symlink_to(live.state)
    succeeded(live.run("ADD", live.network(), sandbox, USERSPACE_CNI_STATE_DIR=f"{link}/"))
    succeeded(live.run("DEL", live.network(), sandbox, USERSPACE_CNI_STATE_DIR=str(link)))
    live.require_clean()


def test_a_file_that_was_not_installed_again(live: LiveNode, other: LiveNode, sandbox: str) -> None:
    """When the agent's state directory differs from the one written into the binary, the first call says so.

    Otherwise a DEL would one day be spooled where no agent looks.
    """
    live.settings["USERSPACE_CNI_STATE_DIR"] = str(other.state)
    live.start()
    bare = {"USERSPACE_CNI_STATE_DIR": ""}
    call = live.run("ADD", live.network(), sandbox, **bare)
    assert call.code == 7
    assert "install" in call.document["details"]
    assert switch_of(live).bridges() == []


def test_a_second_agent_of_the_same_records(live: LiveNode, sandbox: str) -> None:
    """An agent with the records of another but its own locks would undo what that one attaches: it refuses to start.

    The error names both run directories. After the first agent was killed, the next one gets its records.
    """
    live.start()
    elsewhere = f"{live.directory}/elsewhere"
    environ = {**os.environ, **live.environ, "USERSPACE_CNI_RUN_DIR": elsewhere}
    argv = [sys.executable, "-c", GIVES_UP_SOON]
    with paused_vswitchd(switch_of(live)):
        adding = start(live, live.variables("ADD", sandbox), json.dumps(live.network()).encode())
        wait_until(lambda: live.states() == ["applying"], what="an ADD under way")
        second = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert live.states() == ["applying"]
    succeeded(finish(adding, "ADD"))
    assert second.returncode == 3
    for word in (f"process {live.pid}", str(live.state), f"{live.directory}/run", elsewhere):
        assert word in second.stderr
    live.kill()
    live.start()
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()

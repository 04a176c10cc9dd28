"""A call is served by the agent that it means, or refused by the one that it reaches; never does it reach another's switch."""

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
    """These settings of a node, as the environment of a call has them."""
    return {f"USERSPACE_CNI_{key}": node.environ[f"USERSPACE_CNI_{key}"] for key in keys}


def test_state_and_run_directory_of_another_agent(live: LiveNode, other: LiveNode, sandbox: str) -> None:
    """With STATE_DIR and RUN_DIR in its environment the installed file serves a trial: the agent that lives there attaches, and
    the one that the file was installed for learns nothing. The call says that it goes elsewhere.
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
    """When only the records are another's, and the socket is not, the agent says so and names both sides; nothing is attached,
    and no DEL is taken for done.
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
    """A link to the state directory means the same records."""
    live.start()
    link = live.directory / "link"
    link.symlink_to(live.state)
    succeeded(live.run("ADD", live.network(), sandbox, USERSPACE_CNI_STATE_DIR=f"{link}/"))
    succeeded(live.run("DEL", live.network(), sandbox, USERSPACE_CNI_STATE_DIR=str(link)))
    live.require_clean()


def test_a_file_that_was_not_installed_again(live: LiveNode, other: LiveNode, sandbox: str) -> None:
    """When the agent's state directory is no longer the one that was written into the file, the first call says so: a DEL would
    one day be spooled where no agent looks.
    """
    live.settings["USERSPACE_CNI_STATE_DIR"] = str(other.state)
    live.start()
    bare = {"USERSPACE_CNI_STATE_DIR": ""}
    call = live.run("ADD", live.network(), sandbox, **bare)
    assert call.code == 7
    assert "install" in call.document["details"]
    assert switch_of(live).bridges() == []


def test_a_second_agent_of_the_same_records(live: LiveNode, sandbox: str) -> None:
    """An agent with the records of another and locks elsewhere would undo what that one is attaching: it does not start, and
    names both run directories. What a killed agent had, the next one has.
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

"""After the agent's socket was removed, the same agent is found again within seconds, and its work goes on."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import finish, paused_vswitchd, start, succeeded, switch_of
from tests.lab.node.agent import get
from tests.lab.switch.switch import wait_until


def answers(live: LiveNode) -> bool:
    with suppress(OSError):
        return get(live.socket, "/healthz")[0] == 200
    return False


@pytest.mark.parametrize("whole", [False, True], ids=["socket", "directory"])
def test_removed_amid_an_add(live: LiveNode, sandbox: str, whole: bool) -> None:
    """The file, or the whole run directory with its locks, is removed while an ADD waits for the switch.

    That ADD succeeds, the next calls find the agent, and it is the same process.
    """
    live.start()
    pid = live.pid
    with paused_vswitchd(switch_of(live)):
        running = start(live, live.variables("ADD", sandbox), json.dumps(live.network()).encode())
        wait_until(lambda: switch_of(live).bridges(), what="the port's rows")
        if whole:
            shutil.rmtree(Path(live.socket).parent)
        else:
            Path(live.socket).unlink()
        wait_until(lambda: answers(live), what="the agent to be found again")
    result = succeeded(finish(running, "ADD"))
    assert (live.states(), live.pid) == (["ready"], pid)
    succeeded(live.run("CHECK", {**live.network(), "prevResult": result}, sandbox))
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()
    assert "the agent's socket was gone" in live.log.read_text()

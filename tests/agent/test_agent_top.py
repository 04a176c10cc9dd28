"""`top` beside an agent, and of ordinary pods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from typing import Any

from tests.agent.living import LiveNode, container
from tests.cni.spec import succeeded
from tests.cni.test_cli_node import cli
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until

SECONDS = 60.0
RATE = 400_000_000


def sample(live: LiveNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli(live, "top", "--json", "-n", "1", "-d", "0.5").stdout)
    return found


def test_the_agents_state(live: LiveNode, sandbox: str) -> None:
    """Without an agent there is a sample all the same; it says whether one answers, or has died."""
    before = sample(live)
    assert (before["agent"], before["vswitchd"]["state"]) == ({"state": "none", "problem": ""}, "alive")
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    found = sample(live)
    assert found["agent"] == {"state": "ready", "problem": ""}
    assert [each["state"] for each in found["attachments"]] == ["no app"]
    live.kill()
    found = sample(live)
    assert found["agent"]["state"] == "dead"
    assert [each["state"] for each in found["attachments"]] == ["no app"]
    live.start()
    succeeded(live.run("DEL", live.network(), sandbox))
    assert sample(live)["attachments"] == []


def test_an_agent_that_hangs(live: LiveNode) -> None:
    """An agent that answers nothing delays no sample: there are several, and none says that it is ready."""
    live.start()
    os.kill(live.pid, signal.SIGSTOP)
    try:
        lines = cli(live, "top", "--json", "-n", "3", "-d", "0.2").stdout.splitlines()
    finally:
        os.kill(live.pid, signal.SIGCONT)
    assert len(lines) == 3
    assert {json.loads(line)["agent"]["state"] for line in lines} <= {"unknown", "slow"}


def test_ordinary_pods(live: LiveNode) -> None:
    """What kernel links of pods carry is told in both directions, with the limits that the port and the pod's end have."""
    host = {"iftype": "veth", "port": "system", "bridge": {"bridgeName": "br-test"}}
    network = {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, "ipam": live.host_local()}
    limited = {**network, "bandwidth": {"ingressRate": RATE, "egressRate": RATE, "ingressBurst": 10**7, "egressBurst": 10**7}}
    live.start()
    with ExitStack() as stack:
        one, other = stack.enter_context(netns()), stack.enter_context(netns())
        succeeded(live.run("ADD", limited, one, container(1), ifname="eth0"))
        added = succeeded(live.run("ADD", network, other, container(2), ifname="eth0"))
        address = added["ips"][0]["address"].partition("/")[0]
        ping = ["nsenter", f"--net={one}", "ping", "-i", "0.01", "-s", "1000", address]
        process = stack.enter_context(subprocess.Popen(ping, stdout=subprocess.DEVNULL))
        stack.callback(process.kill)

        def carried() -> dict[str, dict[str, Any]] | None:
            found = {each["name"].partition("/")[0]: each for each in sample(live)["attachments"]}
            known = all((each["rates"]["frames_to_pod"] or 0) > 5 for each in found.values())
            return found if known and len(found) == 2 else None

        found = wait_until(carried, SECONDS, "the pings")
        first, second = (found[container(number)[:12]] for number in (1, 2))
        assert {each["state"] for each in found.values()} == {"link up"}
        for each in found.values():
            rates = each["rates"]
            assert rates["bits_to_pod"] > 4000 * rates["frames_to_pod"]  # ARP is among them
            assert rates["frames_from_pod"] > 5
        assert {way: limit["rate"] for way, limit in first["limits"].items()} == {"to_pod": RATE, "from_pod": RATE}
        assert all(0 < limit["used"] < 0.1 for limit in first["limits"].values())
        assert second["limits"] == {}
        process.kill()
        succeeded(live.run("DEL", limited, one, container(1), ifname="eth0"))
        succeeded(live.run("DEL", network, other, container(2), ifname="eth0"))
    live.require_clean()

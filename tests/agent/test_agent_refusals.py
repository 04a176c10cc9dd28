"""Whatever a pod's author makes the agent report again and again is logged only now and then, and kept once."""

from __future__ import annotations

import json

from tests.agent.living import LiveNode
from tests.agent.test_agent_live import POD, annotate, api, follows, podnet
from tests.cni.spec import succeeded
from tests.lab.kube.apiserver import ApiServer
from tests.lab.node.belongings import resident
from tests.lab.switch.switch import wait_until

__all__ = ["api"]
CHANGES = 6000
LONG = "x" * 3500


def test_thousands_of_refused_annotations(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """The log gets a few lines, memory does not grow, the pod has one Event, and a valid value is applied."""
    live.start()
    succeeded(live.run("ADD", podnet(live), sandbox, ifname="eth0", CNI_ARGS=POD.args))
    annotate(api, to="10M")
    follows(live, (10_000_000, None))
    kib, log = resident(live.pid), live.log.stat().st_size
    for number in range(CHANGES):
        annotate(api, own=json.dumps({"eth0": {"egressRate": f"fast {number} {LONG}"}}))
    annotate(api, own=None, to="20M")
    follows(live, (20_000_000, None))
    lines = live.log.read_text()[log:].count("cannot be applied")
    assert 1 <= lines <= 5
    assert live.log.stat().st_size - log < 16_384
    assert resident(live.pid) - kib < 8 * 1024
    wait_until(lambda: api.events.of("app"), what="the Event")
    assert set(api.events.of("app")) == {"LimitRefused"}

"""The image's probe against the agent itself, which leaves closing a connection to its peer."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from tests.lab.node.agent import Agent, running
from tests.lab.node.node import Node
from tests.lab.runtimes.dockerfile import PROBE

RUNS = 20


def probe(agent: Agent, question: str) -> tuple[int, str]:
    """Exit status and output of the probe."""
    done = subprocess.run([str(PROBE), agent.socket, question], capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def probes(agent: Agent, question: str) -> set[tuple[int, str]]:
    """What many probes say, one after the other and four at a time; the time that one takes is printed."""
    began = time.monotonic()
    said = {probe(agent, question) for _ in range(RUNS)}
    print(f"GET {question}: {(time.monotonic() - began) / RUNS * 1000:.0f} ms a probe")
    with ThreadPoolExecutor(4) as threads:
        return said | set(threads.map(lambda _: probe(agent, question), range(RUNS)))


def test_probes_of_a_living_agent(node: Node) -> None:
    """Every probe is answered, none of many runs into its time, and an answer of any size is one."""
    with running(node) as agent:
        for question in ("/healthz", "/readyz", "/metrics"):
            assert probes(agent, question) == {(0, "")}


def test_probes_of_an_agent_without_a_switch(bare_node: Node) -> None:
    """An agent without OVSDB is healthy and not ready, and the probe shows why."""
    with running(bare_node) as agent:
        assert probes(agent, "/healthz") == {(0, "")}
        [(status, shown)] = probes(agent, "/readyz")
        assert status == 1
        assert shown.startswith("HTTP/1.1 503 ")
        assert "no-such-db.sock" in shown

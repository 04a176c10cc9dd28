"""Health over TCP, as a kubelet's probes use it."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.node.agent import running
from tests.lab.node.node import Node


@contextmanager
def probed(node: Node) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    with running(node, USERSPACE_CNI_HEALTH_LISTEN=where):
        yield f"http://{where}"


def problems(url: str) -> tuple[int, list[str]]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, json.load(answer)["problems"]
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, json.load(answer)["problems"]


def test_an_agent_that_works(node: Node) -> None:
    """It is healthy and ready; the port of health does not serve metrics."""
    with probed(node) as url:
        assert problems(f"{url}/healthz") == (200, [])
        assert problems(f"{url}/readyz") == (200, [])
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/metrics", timeout=60)


def test_an_agent_without_a_switch(bare_node: Node) -> None:
    """It is healthy, so that it is not restarted, but not ready, and says why."""
    with probed(bare_node) as url:
        assert problems(f"{url}/healthz") == (200, [])
        status, [problem] = problems(f"{url}/readyz")
        assert (status, "no-such-db.sock" in problem) == (503, True)

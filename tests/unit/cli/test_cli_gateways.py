"""`gateway status` says that a gateway holds only if the trial found that the node forwards for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from userspace_cni.base.settings import Settings
from userspace_cni.cli.agent_client import AgentClient
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.site import Site

PASSES = {4: ("passes", ""), 6: ("passes", "")}
Passages = dict[int, tuple[str, str]]


def answer(passages: Passages | None, *, ready: bool = True) -> dict[str, Any]:
    """An agent's answer about the gateway br0-gw; None: an agent that does not know passages."""
    spec = {"kind": "gateway", "name": "br0-gw", "source": "settings", "said_by": "a file", "desired": True, "ready": ready}
    found: dict[str, Any] = {"specs": [{**spec, "problem": "" if ready else "no", "steps": []}], "concerns": [], "mirrors": {}}
    if passages is not None:
        told = [(version, state, reason) for version, (state, reason) in passages.items()]
        found["passages"] = [{"gateway": "br0-gw", "version": v, "state": s, "reason": r} for v, s, r in told]
    return {**found, "objects": ""}


def run(monkeypatch: pytest.MonkeyPatch, directory: Path, found: dict[str, Any], *arguments: str) -> Result:
    """The command; the agent's trial has this result, and without a trial it knows nothing."""
    monkeypatch.setattr(AgentClient, "gateways", lambda _: found)
    monkeypatch.setattr(AgentClient, "network", lambda _: answer({}))
    settings = Settings(state_dir=str(directory / "state"), run_dir=str(directory / "run"), short_dir=str(directory / "short"))
    return CliRunner().invoke(userspace_cni, ["gateway", "status", *arguments], obj=Site(settings, None, environ={}))


@pytest.mark.parametrize(
    ("found", "state", "code"),
    [
        (answer(PASSES), "holds", 0),
        (answer({4: ("passes", "")}), "holds", 0),
        (answer({4: ("lost", "there"), 6: ("passes", "")}), "loses IPv4", 1),
        (answer({4: ("lost", "there"), 6: ("lost", "there")}), "loses IPv4, IPv6", 1),
        (answer({4: ("unknown", "why"), 6: ("lost", "there")}), "loses IPv6", 1),
        (answer({4: ("unknown", "why"), 6: ("passes", "")}), "unknown IPv4", 0),
        (answer({}), "unknown", 0),
        (answer(None), "unknown", 0),
        (answer(PASSES, ready=False), "not met", 1),
        (answer({4: ("lost", "there")}, ready=False), "not met", 1),
    ],
)
def test_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: dict[str, Any], state: str, code: int) -> None:
    """Without a trial the state is unknown, also from an agent of an earlier release.

    One lost IP version is enough for a failure.
    """
    done = run(monkeypatch, tmp_path, found)
    assert (done.exit_code, state in done.stdout) == (code, True)
    assert ("holds" in done.stdout) == (state == "holds")


def test_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each version with its state and reason."""
    done = run(monkeypatch, tmp_path, answer({4: ("lost", "there")}), "--json")
    passages = json.loads(done.stdout)["passages"]
    assert (done.exit_code, passages) == (1, [{"gateway": "br0-gw", "version": 4, "state": "lost", "reason": "there"}])

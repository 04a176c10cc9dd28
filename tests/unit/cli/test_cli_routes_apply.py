"""`routes apply` with an API server: what is sent, what the server would do, and what is printed when it refuses or is away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import defined_server
from userspace_cni.base.settings import Settings
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.site import Site
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.resources import ROUTES

Apply = Callable[..., Result]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server that knows Routes, and has none."""
    with defined_server() as started:
        yield started


@pytest.fixture
def apply(api: ApiServer, tmp_path: Path) -> Apply:
    """The command, with these objects as a file of several documents."""
    config = api.kubeconfig(tmp_path)

    def command(*things: Mapping[str, Any], options: tuple[str, ...] = ()) -> Result:
        settings = Settings(state_dir=str(tmp_path), run_dir=str(tmp_path), short_dir=str(tmp_path), kubeconfig=config)
        given = "\n---\n".join(map(json.dumps, things))
        site = Site(settings, environ={})
        try:
            return CliRunner().invoke(userspace_cni, ("routes", "apply", "-f", "-", *options), input=given, obj=site)
        finally:
            site.close()

    return command


def route(name: str, dst: str = "10.0.0.0/8", **more: Any) -> dict[str, Any]:
    """A Route object as its user writes it."""
    spec = {"route": [{"dst": dst, "dev": "eth1"}], **more}
    return {"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": name}, "spec": spec}


def states(result: Result) -> dict[str, str]:
    """The outcome for each Route, from --json."""
    return {each["name"]: each["state"] for each in json.loads(result.stdout)["routes"]}


def stored(api: ApiServer) -> dict[str, Any]:
    store = api.objects("routes.k8s.ovn.org")
    return {name: store.get("", name) for _, name in store.names()}


def test_a_dry_run_asks_the_server(api: ApiServer, apply: Apply) -> None:
    """It sends a server-side dry run, reports the outcome for each Route, and the server stores nothing."""
    applied = apply(route("same"), route("other"))
    assert applied.exit_code == 0, applied.output
    before, version = stored(api), api.objects("routes.k8s.ovn.org").version
    desired = (route("same"), route("other", "10.9.0.0/16"), route("new"))
    for _ in range(2):
        result = apply(*desired, options=("--dry-run", "--json"))
        assert (result.exit_code, states(result)) == (0, {"same": "unchanged", "other": "changed", "new": "created"})
        assert (json.loads(result.stdout)["dry_run"], stored(api)) == (True, before)
    assert api.objects("routes.k8s.ovn.org").version == version
    asked = [each for each in api.requests if each.method == "PATCH"]
    assert [each.option("dryRun") for each in asked] == ["", "", *["All"] * 6]
    result = apply(*desired, options=("--json",))
    assert states(result) == {"same": "unchanged", "other": "changed", "new": "created"}
    sent = [each for each in api.requests if each.method == "PATCH"]
    assert [each.body for each in sent[-3:]] == [each.body for each in asked[-3:]]


def test_a_dry_run_in_words(apply: Apply) -> None:
    """Outcomes are in the conditional; the server's address is on stderr."""
    result = apply(route("new"), options=("--dry-run",))
    assert "would be created" in result.stdout
    assert result.stderr.splitlines() == ["a dry run for the API: nothing was applied"]


def test_what_the_server_would_refuse(api: ApiServer, apply: Apply, tmp_path: Path) -> None:
    """A conflict with another manager, and an object that its schema does not allow, are reported as refusals; others are not."""
    assert apply(route("taken")).exit_code == 0
    session = KubeClient(api.kubeconfig(tmp_path)).session
    Objects(session).apply(ROUTES, "taken", {"spec": route("taken", "10.2.0.0/16")["spec"]}, manager="kubectl")
    before = stored(api)
    desired = (route("taken", "10.3.0.0/16"), route("good"))
    for options in (("--dry-run",), ()):
        result = apply(*desired, options=(*options, "--json"))
        assert (result.exit_code, states(result)) == (1, {"taken": "refused", "good": "created"})
        assert "--force" in json.loads(result.stdout)["routes"][0]["details"][0]
        assert stored(api)["taken"] == before["taken"]
    result = apply(*desired, options=("--dry-run", "--force", "--json"))
    assert (result.exit_code, states(result)["taken"], stored(api)["taken"]) == (0, "changed", before["taken"])
    api.faults.append(Fault("PATCH", status=422, times=1))
    result = apply(route("good"), options=("--dry-run", "--json"))
    assert (result.exit_code, "(422): injected" in json.loads(result.stdout)["routes"][0]["details"][0]) == (1, True)


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_server_that_does_not_answer(api: ApiServer, apply: Apply, options: tuple[str, ...]) -> None:
    """It is asked once, because the next Route would wait as long; each Route is reported as failed, with exit code 3."""
    api.faults.append(Fault(close=True))
    result = apply(route("a"), route("b"), route("c"), options=(*options, "--json"))
    assert (result.exit_code, states(result)) == (3, dict.fromkeys("abc", "failed"))
    assert len(api.requests) <= 2
    found = json.loads(result.stdout)["routes"]
    assert "/routes/a" in found[0]["details"][0]
    assert "not tried" in found[2]["details"][0]
    api.stop()
    result = apply(route("a"), options=options)
    assert (result.exit_code, "failed" in result.stdout) == (3, True)

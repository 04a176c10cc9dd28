"""Objects from files and from the API server, as a dry run combines them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node, ours
from tests.lab.kube.definitions import defined_server
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.settings import Settings
from userspace_cni.cli.network.dry_run_objects import objects_for
from userspace_cni.cli.site import CommandRefused, Site

FILE = """\
apiVersion: v1
kind: List
items:
- {apiVersion: userspace-cni.io/v1alpha1, kind: Vlan, metadata: {name: v200}, spec: {id: 200, provider: net1}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: other}}
---
apiVersion: userspace-cni.io/v1alpha1
kind: ProviderNetwork
metadata: {name: net1}
spec: {defaultInterface: eth7}
"""


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with a ProviderNetwork, a Vlan and the node."""
    with defined_server() as started:
        started.add(node("n1", "192.0.2.11"))
        started.add(ours("ProviderNetwork", "net1", defaultInterface="eth1"))
        started.add(ours("Vlan", "v100", id=100, provider="net1"))
        yield started


def site(directory: Path, api: ApiServer | None = None, **settings: object) -> Site:
    """The node n1, with an account where there is a server."""
    found = Settings(
        state_dir=str(directory), run_dir=str(directory), node_name="n1", kubeconfig=api.kubeconfig(directory) if api else ""
    )
    return Site(Settings(**{**vars(found), **settings}), environ={})


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file with two objects, and others."""
    path = tmp_path / "objects.yaml"
    path.write_text(FILE)
    return str(path)


def test_files_are_taken_over_what_the_server_has(tmp_path: Path, api: ApiServer, file: str) -> None:
    """A file's object replaces the server's of the same name, others are added, as if they were applied; nothing is written."""
    asked = {verb: api.count(verb) for verb in ("PATCH", "PUT", "POST")}
    seen = objects_for(site(tmp_path, api, network_objects=True), [file])
    assert seen
    assert {name: each.spec for name, each in (seen.provider_networks or {}).items()} == {"net1": {"defaultInterface": "eth7"}}
    assert set(seen.vlans or {}) == {"v100", "v200"}
    assert seen.own
    assert seen.own.addresses == ("192.0.2.11",)
    assert {verb: api.count(verb) for verb in asked} == asked


def test_objects_that_are_there(tmp_path: Path, api: ApiServer) -> None:
    """Without a file the server's objects are used; a node that reads no objects uses none."""
    seen = objects_for(site(tmp_path, api, network_objects=True), [])
    assert seen
    assert (set(seen.provider_networks or {}), set(seen.vlans or {})) == ({"net1"}, {"v100"})
    assert objects_for(site(tmp_path, api), []) is None


def test_without_an_account(tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The file alone is known, and that is said."""
    seen = objects_for(site(tmp_path), [file])
    assert seen
    assert (set(seen.provider_networks or {}), set(seen.vlans or {})) == ({"net1"}, {"v200"})
    told = capsys.readouterr().err
    assert "no credentials for the API server" in told
    assert "network_objects is false" in told


@pytest.mark.parametrize("about", ["/vlans", "/nodes", "/provider-networks"])
def test_what_cannot_be_asked_is_not_concluded(tmp_path: Path, api: ApiServer, file: str, about: str) -> None:
    """If the server refuses or does not answer the dry run fails, because the server's Vlans may decide."""
    api.faults.append(Fault("LIST", status=403, about=about))
    with pytest.raises(UserspaceError, match="403"):
        objects_for(site(tmp_path, api, network_objects=True), [file])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: ConfigMap", "has no ProviderNetwork, Vlan or Subnet of userspace-cni.io/v1alpha1"),
        ("apiVersion: userspace-cni.io/v1alpha1\nkind: Vlan\nspec: {}", "a Vlan has no metadata.name"),
        ("a: [", "it is not YAML"),
    ],
)
def test_files_that_cannot_be_meant(tmp_path: Path, text: str, words: str) -> None:
    """Invalid files are refused by name."""
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(CommandRefused, match=words) as error:
        objects_for(site(tmp_path), [str(path)])
    assert str(path) in str(error.value)

"""When the runtimes' network is planned, and whose it is: the setting's, or the one that install was given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from userspace_cni.attachment.records import Record, encode_complete, node_container
from userspace_cni.attachment.specs import Spec, Specs, compare
from userspace_cni.attachment.steps import RuntimeNetwork
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.settings import Settings
from userspace_cni.cni.conflist import mark
from userspace_cni.host.runtimes.runtime_networks import RuntimeNetworkDriver
from userspace_cni.network.runtime_network import NAME, PluginList, copy_of, former_names, specs
from userspace_cni.network.spec_list import INSTALL, RUNTIME_NETWORK, SETTINGS
from userspace_cni.node.belongings import RUNTIME_NETWORK_COPY
from userspace_cni.node.local_node import LocalNode

CONFIG = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "userspace"}]}
TEXT = json.dumps(CONFIG).encode()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalNode]:
    settings = Settings(
        state_dir=f"{tmp_path}/state",
        run_dir=f"{tmp_path}/run",
        short_dir=f"{tmp_path}/short",
        ovsdb=f"unix:{tmp_path}/db.sock",
        ovs_rundir=str(tmp_path),
        cni_conf_dir=f"{tmp_path}/net.d",
    )
    made = LocalNode(settings, {}, resident=True)
    yield made
    made.close()


def with_file(node: LocalNode, tmp_path: Path, name: str = "10-net.conflist") -> Settings:
    path = tmp_path / name
    path.write_bytes(TEXT)
    return replace(node.installation.settings, cni_conf_file=str(path))


def only(settings: Settings, node: LocalNode, *, serving: bool) -> Spec:
    [spec], _ = specs(settings, node, lambda: serving)
    return spec


def recorded(node: LocalNode, *steps: RuntimeNetwork) -> Record:
    """A complete attachment of this boot with these steps, which are true."""
    for step in steps:
        RuntimeNetworkDriver().apply(step, Deadline.after(60))
    container = node_container(RUNTIME_NETWORK)
    return Record("ready", SETTINGS, container, NAME, boot_id=node.store.boot_id(), steps=steps)


def file_of(node: LocalNode, name: str) -> RuntimeNetwork:
    store = node.store.journal.identity()
    return RuntimeNetwork(node.installation.settings.cni_conf_dir, name, mark(CONFIG, store), store)


def test_before_calls_are_taken(node: LocalNode, tmp_path: Path) -> None:
    """Nothing comes and nothing changes, and the status says so; what the record names and is not there does not come either."""
    settings = with_file(node, tmp_path)
    spec = only(settings, node, serving=False)
    plan = spec.plan
    [status] = Specs(node).reconcile([spec], [])
    assert (status.holds, "10-net.conflist: it waits until this agent takes calls" in status.problem) == (False, True)
    assert compare(spec, node).problem == status.problem
    assert spec.content != only(settings, node, serving=True).content
    former = file_of(node, "05-old.conflist")
    record = recorded(node, former)
    for each in (record, replace(record, boot_id="another")):
        assert plan(each) == (former,)
    unfinished = record.to("applying", steps=(file_of(node, "10-net.conflist"),), result=encode_complete((former,)))
    assert plan(unfinished) == (replace(former, instead_of=("10-net.conflist",)),)
    (Path(former.directory) / former.name).unlink()
    with pytest.raises(Unavailable, match="waits until this agent takes calls"):
        plan(record)


def test_after_a_death_amid_a_change(node: LocalNode, tmp_path: Path) -> None:
    """The one file that is there stays until calls are taken: without it the runtime has no network."""
    plan = only(with_file(node, tmp_path), node, serving=False).plan
    former, new = file_of(node, "05-old.conflist"), file_of(node, "10-net.conflist")
    record = recorded(node, new).to("applying")
    assert plan(record) == (new,)
    assert plan(record.to("applying", steps=(former, new), result=encode_complete((former,)))) == (
        replace(new, instead_of=("05-old.conflist",)),
    )
    (Path(former.directory) / former.name).write_text("{}")
    assert plan(record.to("applying", steps=(former, new), result=encode_complete((former,)))) == (
        replace(new, instead_of=("05-old.conflist",)),
    )


def test_while_no_pod_can_be_attached(node: LocalNode, tmp_path: Path) -> None:
    """It waits, also where a boot lies between; what is in place in this boot needs no switch."""
    plan = only(with_file(node, tmp_path), node, serving=True).plan
    ours = file_of(node, "10-net.conflist")
    record = recorded(node, ours)
    assert plan(record) == (ours,)
    after_a_death = replace(ours, instead_of=("05-old.conflist",))
    assert plan(recorded(node, after_a_death)) == (after_a_death,)
    for each in (
        None,
        replace(record, boot_id="another"),
        record.to("applying"),
        recorded(node, file_of(node, "05-old.conflist")),
    ):
        with pytest.raises(Unavailable, match="it waits until pods can be attached"):
            plan(each)


def test_which_files_it_takes_the_place_of(node: LocalNode) -> None:
    """That of the record; amid a change, those that this one was to replace, too."""
    given = PluginList("10-net.conflist", TEXT, "")
    record = recorded(node, replace(file_of(node, "20-net.conflist"), instead_of=("05-old.conflist", "10-net.conflist")))
    assert former_names(None, given) == ()
    assert former_names(record, given) == ("20-net.conflist",)
    assert former_names(record.to("applying"), given) == ("05-old.conflist", "20-net.conflist")
    assert former_names(record, replace(given, name="20-net.conflist")) == ()


def test_which_one(node: LocalNode, tmp_path: Path) -> None:
    """The setting goes before what install was given; a copy that cannot be read is no end of it."""
    assert specs(node.installation.settings, node, lambda: True) == ([], frozenset({INSTALL}))
    Path(node.installation.settings.state_dir).mkdir(exist_ok=True)
    copy = Path(node.installation.settings.state_dir) / RUNTIME_NETWORK_COPY
    copy.write_bytes(copy_of(PluginList("20-given.conflist", TEXT, "")))
    [spec], complete = specs(node.installation.settings, node, lambda: True)
    assert (spec.source, spec.said_by, complete) == (INSTALL, "install --network 20-given.conflist", frozenset({INSTALL}))
    settings = with_file(node, tmp_path)
    assert only(settings, node, serving=True).source == SETTINGS
    Path(settings.cni_conf_file).unlink()
    with pytest.raises(Unavailable, match="it does not exist"):
        only(settings, node, serving=True).plan(None)
    with pytest.raises(InvalidConfig, match=r"must end with \.conflist"):
        only(with_file(node, tmp_path, "net.json"), node, serving=True).plan(None)
    for text in ("", "[]", "{}", '{"name": 1, "text": ""}', '{"name": "a.conflist", "text": 1}', '{"name": "../x", "text": ""}'):
        copy.write_text(text)
        assert specs(node.installation.settings, node, lambda: True) == ([], frozenset())

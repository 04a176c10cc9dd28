"""`why` on a node in memory: which attachments a name means, what is printed, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.test_cli_commands import CONTAINER, OTHER, Town, decoded
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import Unavailable
from userspace_cni.cli.node import switch_log


@pytest.fixture
def pods(tmp_path: Path) -> Town:
    """A node with a pod of two interfaces, and one of the same name in another namespace."""
    made = Town(tmp_path)
    for container, ifname, namespace in ((CONTAINER, "net1", "shop"), (CONTAINER, "net2", "shop"), (OTHER, "net1", "test")):
        made.call("ADD", container, ifname)
        made.journal.write(replace(made.record(container, ifname), pod_namespace=namespace, pod_name="web"))
    return made


def test_a_paragraph_for_each_interface(pods: Town) -> None:
    """All interfaces of the named pods, each once however often it is named."""
    result = pods.cli("why", "shop/web", "shop/web/net2", "test/web")
    assert [each.split(":")[0] for each in result.stdout.split("\n\n")] == ["shop/web/net1", "shop/web/net2", "test/web/net1"]
    found = decoded(pods.cli("why", "shop/web/net2", "--json"))
    assert [(each["name"], each["unasked"]) for each in found["attachments"]] == [("shop/web/net2", [])]
    assert found["attachments"][0]["well"][0] == "the record"
    assert {each["severity"] for each in found["attachments"][0]["findings"]} == {"note"}


def test_names_that_mean_several_pods_or_none(pods: Town) -> None:
    """The former is a mistake in the call; of the latter it says what is known, and which names are alike."""
    assert pods.cli("why", "web").exit_code == 2
    result = pods.cli("why", "wen", "test/web")
    assert result.exit_code == 1
    paragraphs = result.stdout.split("\n\n")
    assert paragraphs[1].startswith("wen: No attachment on this node is named so.")
    assert "did you mean" in paragraphs[1]
    assert pods.cli("why").exit_code == 2


def test_what_cannot_be_asked_is_no_fault(pods: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that cannot be looked at is named, and the exit code is 3; a fault beside it is 1."""

    def away(*_: object) -> list[Drift]:
        raise Unavailable("reading the note", "the server is away")

    record: Record = pods.record(CONTAINER, "net1")
    step = next(each for each in record.steps if each.kind == "directory")
    monkeypatch.setattr(type(pods.driver(step)), "check", lambda _, each, limit: away() if each == step else [])
    result = pods.cli("why", "shop/web/net1")
    assert result.exit_code == 3
    assert "Could not be asked: step 'directory', because reading the note; the server is away." in result.stdout
    assert "Nothing wrong was found." in result.stdout


def test_the_log_of_the_switch(tmp_path: Path) -> None:
    """The last line above INFO about a port is its complaint, unless it only repeats what OVSDB says; no log is none."""
    log = tmp_path / "ovs-vswitchd.log"
    log.write_text(
        "2026-11-28T00:00:00.000Z|00001|dpdk|ERR|VHOST_CONFIG: (/run/p1) failed to bind: Address already in use\n"
        "2026-11-28T00:00:00.000Z|00002|bridge|WARN|could not open network device p1 (Unknown error -1)\n"
        "2026-11-28T00:00:00.000Z|00003|bridge|INFO|bridge br0: p1 is no port\n"
        "p1 torn"
    )
    said = switch_log.last_complaint(str(log), "p1", "could not open network device p1")
    assert said == "dpdk: VHOST_CONFIG: (/run/p1) failed to bind: Address already in use"
    assert switch_log.last_complaint(str(log), "p2", "x") == ""
    assert switch_log.last_complaint(str(tmp_path / "none"), "p1", "x") == ""

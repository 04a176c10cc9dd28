"""Notices for pods are collected for the caller that sends them, and each reason is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from userspace_cni.base import errors, notices
from userspace_cni.base.notices import KEY_IGNORED, REASONS, collect, give, give_failure
from userspace_cni.kube.events import type_of

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
ROW = re.compile(r"^\| `([A-Z]\w+)` \| (Warning|Normal) \|", re.MULTILINE)


def test_every_reason_is_documented() -> None:
    """The page has a row with the type for each reason, and for no other."""
    assert dict(ROW.findall(PAGE.read_text())) == {reason.name: type_of(reason.severity) for reason in REASONS}


def test_notices_are_collected_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A notice is in the log, and once in the list of the innermost collector; without one it is in the log alone."""
    give(KEY_IGNORED, "key 'a'")
    with collect() as outer:
        give(KEY_IGNORED, "key 'a'")
        with collect() as inner:
            give(KEY_IGNORED, "key 'b'")
            give(KEY_IGNORED, "key 'b'")
            for number in range(100):
                give(KEY_IGNORED, f"key {number}")
    assert outer == [KEY_IGNORED.finding("key 'a'")]
    assert len(inner) < 100
    assert inner[0] == KEY_IGNORED.finding("key 'b'")
    assert capsys.readouterr().err.count("key 'a'") == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.VolumeMissing("x"), "VolumeMissing"),
        (errors.DirectoryRefused("x"), "DirectoryRefused"),
        (errors.BridgeRefused("x"), "BridgeRefused"),
        (errors.MirrorRefused("x"), "MirrorRefused"),
        (errors.LogicalPortRefused("x"), "LogicalPortRefused"),
        (errors.HostNamespace("x"), "NetworkRefused"),
        (errors.DelegateFailed("no address is left", code=999), "AddressRefused"),
        (errors.DelegateFailed("later", code=11), ""),
        (errors.Unavailable("x"), ""),
        (errors.ContainerGone("x"), ""),
        (errors.AlreadyAttached("x"), ""),
        (errors.RecordRefused("x"), ""),
        (errors.UserspaceError("a bug", code=errors.UNEXPECTED), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_reasons_of_errors(error: errors.UserspaceError, reason: str) -> None:
    """An error that is a pod's or network's fault is sent with text and details, under the closest reason; no other is."""
    error.details = "look there"
    with notices.collect() as told:
        give_failure(error)
    assert [(notice.name, notice.message) for notice in told] == ([(reason, str(error))] if reason else [])

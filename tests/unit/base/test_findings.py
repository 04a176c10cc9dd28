"""Findings: when two are equal, and since when each exists."""

from __future__ import annotations

from dataclasses import replace

from userspace_cni.base.findings import Finding, date_findings

SILENT = Finding("gateway-router", "warning", "gateway br0-gw", "router 192.0.2.1 is silent", path="router 192.0.2.1")
OTHER = replace(SILENT, message="router 192.0.2.1 is no neighbour")


def test_since_when_it_is_there() -> None:
    """A finding of the former look keeps its time; a new one, and one that comes again, has the time of this look."""
    first = date_findings([SILENT], (), 10.0)
    second = date_findings([OTHER, SILENT], first, 20.0)
    assert [each.since for each in second] == [20.0, 10.0]
    assert [each.since for each in date_findings([SILENT], date_findings([OTHER], second, 30.0), 40.0)] == [40.0]


def test_the_same_a_moment_later() -> None:
    """A finding is equal to itself at another time, and to no other."""
    assert replace(SILENT, since=1.0) == replace(SILENT, since=2.0)
    assert SILENT != OTHER

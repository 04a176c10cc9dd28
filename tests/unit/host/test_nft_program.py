"""The output of nft is parsed without trust; only "no such table" counts as a missing table."""

from __future__ import annotations

from pathlib import Path

import pytest

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable
from userspace_cni.base.root import HERE
from userspace_cni.host.node_net import nft_program


def listed(monkeypatch: pytest.MonkeyPatch, directory: Path, script: str, seconds: float = 60.0) -> object:
    """The table's content, by a program that replaces nft."""
    nft = directory / "nft"
    nft.write_text(f"#!/bin/sh\n{script}\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    return nft_program.list_table("t", "", HERE, Deadline.after(seconds))


def test_no_such_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """nft is run without translations, and the result is an empty list."""
    script = '[ "$LC_ALL" = C ] && echo "Error: No such file or directory" >&2; exit 1'
    assert listed(monkeypatch, tmp_path, script) == []


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loader's "no such file" is not about a table."""
    library = "error while loading shared libraries: libnftables.so.1: cannot open shared object file: No such file or directory"
    with pytest.raises(StepFailed, match="libnftables"):
        listed(monkeypatch, tmp_path, f'echo "nft: {library}" >&2; exit 127')


def test_another_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another failure does not mean that the table is gone."""
    with pytest.raises(StepFailed, match=r"nft list table inet t: .*Operation not permitted"):
        listed(monkeypatch, tmp_path, 'echo "netlink: Error: cache initialization failed: Operation not permitted" >&2; exit 1')


def test_any_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A comment of another program need not be UTF-8."""
    script = """printf '{"nftables": [{"rule": {"comment": "\\377"}}]}'"""
    assert listed(monkeypatch, tmp_path, script) == [{"rule": {"comment": "\ufffd"}}]


def test_it_does_not_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the command and the time that it had."""
    with pytest.raises(Unavailable, match=r"nft -j list table inet t: it has not ended within 0\.[0-9] s"):
        listed(monkeypatch, tmp_path, "exec sleep 60", 0.3)

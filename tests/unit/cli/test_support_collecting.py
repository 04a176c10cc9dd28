"""How things are collected for an archive: each in its own time, and none of what did not answer before."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from userspace_cni.base.errors import Unavailable
from userspace_cni.cli.support import collecting
from userspace_cni.cli.support.collecting import Collected, CommandItem, SupportCollector, SupportItem, commands_at_once


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What is waited for until the test ends."""
    event = threading.Event()
    yield event
    event.set()


def collected(*items: SupportItem, commands: tuple[CommandItem, ...] = ()) -> dict[str, Collected]:
    found = SupportCollector(dict(os.environ), lambda _: None).collect(items, commands)
    return {each.path: each for each in found}


def test_what_hangs_is_left_behind(never: threading.Event) -> None:
    """A question without an answer is named; its process is not asked again, others are, and what fails is told."""

    def fail(error: Exception) -> Any:
        raise error

    found = collected(
        SupportItem("hangs", "the page", never.wait, "agent", 0.2),
        SupportItem("same", "another page", lambda: 1, "agent"),
        SupportItem("other", "tables", lambda: {"a": 1}, "OVSDB"),
        SupportItem("fails", "tables", lambda: fail(Unavailable("it is away", "see its log")), "OVSDB"),
        SupportItem("still", "tables", lambda: 2, "OVSDB"),
        SupportItem("bug", "a file", lambda: fail(TypeError("odd"))),
        SupportItem("file", "a file", lambda: fail(FileNotFoundError(2, "No such file", "/x"))),
    )
    assert {path: (each.value, each.problem) for path, each in found.items()} == {
        "hangs": (None, "no answer within 0.2 s"),
        "same": (None, "not asked: agent did not answer before (the page)"),
        "other": ({"a": 1}, ""),
        "fails": (None, "it is away; see its log"),
        "still": (2, ""),
        "bug": (None, "odd"),
        "file": (None, "/x: No such file"),
    }


def test_commands_have_one_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command's JSON, exit code and notes are kept; when the time of all is over the next ones are not run, and named."""
    done = collected(commands=(CommandItem("schema", "keys", ("schema", "network")), CommandItem("bad", "none", ("bogus",))))
    assert done["schema"].value["answer"]["type"] == "object"
    assert (done["schema"].value["exit code"], done["bad"].value["exit code"]) == (0, 2)
    assert done["bad"].value["stderr"]
    monkeypatch.setattr(collecting, "_COMMANDS_S", 0.0)
    [late] = collected(commands=(CommandItem("late", "keys", ("schema", "network")),)).values()
    assert (late.value, late.problem) == (None, "not run: the 0 s for all commands were over")


@pytest.mark.parametrize(
    ("limit", "used", "at_once"), [("max", "90", 3), ("268435456", "94371840", 1), ("1073741824", "94371840", 3), ("1", "2", 1)]
)
def test_memory_of_a_container_is_the_agents(tmp_path: Path, limit: str, used: str, at_once: int) -> None:
    """Where memory is limited, as in the agent's container, commands run one after the other."""
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(used + "\n")
    assert commands_at_once(tmp_path) == at_once
    assert commands_at_once(tmp_path / "none") == 3

"""Warnings of a call go to stderr and can also be collected for its caller."""

from __future__ import annotations

import threading

import pytest

from userspace_cni.base.log import about, bind, collect_warnings, say


def test_warnings_are_collected(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings are in the list with their facts and without the context, each once; stderr has every line as ever."""
    with bind("info", verb="ADD"), collect_warnings() as heard:
        say("info", "an info")
        say("warning", "plain")
        say("warning", "plain")
        say("warning", "with facts", port="a b", left=None)
        say("error", "an error")
    say("warning", "later")
    assert heard == ["plain", 'with facts; port="a b" left=None']
    assert [line.partition(" level=")[2] for line in capsys.readouterr().err.splitlines()] == [
        'info msg="an info" verb=ADD',
        "warning msg=plain verb=ADD",
        "warning msg=plain verb=ADD",
        'warning msg="with facts" verb=ADD port="a b" left=None',
        'error msg="an error" verb=ADD',
        "warning msg=later",
    ]


def test_a_hint_is_a_sentence() -> None:
    """The hint of a collected warning is no quoted fact: the caller quotes the whole once more."""
    with collect_warnings() as heard:
        say("warning", "it is closed", port="a b", hint="is it right? see its log")
        say("warning", "it is open", hint="see its log")
    assert heard == ['it is closed; port="a b"; is it right? see its log', "it is open; see its log"]


def test_what_is_about_another_attachment() -> None:
    """Warnings about another attachment within a call are not its caller's."""
    with collect_warnings() as heard, about({"container": "another"}):
        say("warning", "not yours")
    assert heard == []


def test_what_is_not_logged_is_not_collected() -> None:
    """What is below the call's level is not collected."""
    with collect_warnings() as heard, bind("error"):
        say("warning", "hidden")
    assert heard == []


def test_warnings_of_other_threads_are_not_collected() -> None:
    """Warnings of another thread are another call's."""
    with collect_warnings() as heard:
        thread = threading.Thread(target=say, args=("warning", "elsewhere"))
        thread.start()
        thread.join()
    assert heard == []


def test_collected_warnings_are_bounded() -> None:
    """The number and the length of collected warnings have limits."""
    with collect_warnings() as heard:
        for number in range(200):
            say("warning", f"{number}" + "x" * 10_000)
    assert len(heard) == 100
    assert max(map(len, heard)) < 5000

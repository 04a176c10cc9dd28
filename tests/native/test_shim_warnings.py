"""The shim prints an agent's warnings on stderr; they change nothing else of the call."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.node.agentless import (
    HEAD_END,
    NETWORK,
    RESULT,
    TROUBLE,
    Agent,
    Caller,
    Done,
    dribbles,
    finish,
    full_pipe,
    refused,
    reply,
    says,
)
from userspace_cni.cni import protocol

IGNORED = "key 'host.colour' is unknown and ignored"
DEPRECATED = 'OVS is the "server": 100 % deprecated'


WARNING = re.compile(r'time=\S+ level=warning msg=(?:"((?:[^"\\]|\\.)*)"|(\S+))')


def lines_of(done: Done) -> list[str]:
    """The warnings on stderr, each quoted, without the time before it and the facts behind it."""
    found = [match for line in done.stderr.splitlines() if (match := WARNING.match(line))]
    return [f'level=warning msg="{match[1] or match[2] or ""}"' for match in found]


def with_headers(*lines: bytes, status: int = 200, body: bytes = RESULT) -> bytes:
    """An answer that has these lines in its head."""
    first, rest = reply(status, body).split(b"\r\n", 1)
    return b"\r\n".join([first, *lines, rest])


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize(("status", "body"), [(200, RESULT), (500, TROUBLE)])
def test_warnings_are_on_stderr(caller: Caller, verb: str, status: int, body: bytes) -> None:
    """The agent's own answer with warnings: stdout and exit code are as without them, each warning is a line on stderr."""
    with Agent(caller.socket, says(protocol.reply(status, body, warnings=[IGNORED, DEPRECATED]))):
        done = caller.run(verb)
    assert (done.code, done.stdout) == (int(status != 200), body)
    deprecated = DEPRECATED.replace('"', r"\"")
    assert lines_of(done) == [f'level=warning msg="{IGNORED}"', f'level=warning msg="{deprecated}"']
    assert len(done.stderr.splitlines()) == 2


def test_an_answer_with_warnings_in_pieces(caller: Caller) -> None:
    """Nothing is printed before the answer is whole, and then all of it."""
    answer = protocol.reply(200, RESULT, warnings=[IGNORED])
    with Agent(caller.socket, dribbles(answer, len(answer))):
        done = caller.run("ADD")
    assert (done.code, done.stdout, len(lines_of(done))) == (0, RESULT, 1)
    with Agent(caller.directory / "cut", says(answer[:-1])):
        done = caller.run("ADD", USERSPACE_CNI_SOCKET=str(caller.directory / "cut"))
    refused(done, 11)
    assert [line for line in lines_of(done) if "colour" in line] == []


@settings(max_examples=60)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=()), min_size=1, max_size=40) | st.text(min_size=1, max_size=1200), max_size=20
    )
)
def test_any_text_is_one_line_of_signs(caller: Caller, warnings: list[str]) -> None:
    """Each warning is one line of printable ASCII, as many as an answer may have; stdout is the result."""
    path = caller.directory / "any"
    path.unlink(missing_ok=True)
    with Agent(path, says(protocol.reply(200, RESULT, warnings=warnings))):
        done = caller.run("ADD", USERSPACE_CNI_SOCKET=str(path))
    assert (done.code, done.stdout) == (0, RESULT)
    told = [line for line in lines_of(done) if "USERSPACE_CNI_SOCKET" not in line]
    assert len(told) == min(len(warnings), protocol.WARNINGS_MAX)
    assert all(line.isascii() and line.isprintable() and len(line) < 4096 for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"Userspace-Cni-Warning-1: a%0Ab%1b[31m%7f%FFc", r'msg="a\u000ab\u001b[31m\\x7f\\xffc"'),
        (b"userspace-cni-WARNING-7:   a%20b%25", 'msg="a b%"'),
        (b"Userspace-Cni-Warning-1: %00a%0", 'msg=" a%0"'),
        (b"Userspace-Cni-Warning-1: a\tb\x01\xff%zz%4%", r'msg="a\u0009b\u0001\\xff%zz%4%"'),
        (b"Userspace-Cni-Warning-: a", 'msg="a"'),
        (b"Userspace-Cni-Warning-1: a\0b", 'msg="a b"'),
        (b"Userspace-Cni-Warning-1: a\nb\rc", r'msg="a\u000ab\u000dc"'),
        (b"Userspace-Cni-Warning-1: " + b"%20" * 20000 + b"end", 'msg="' + " " * 1023 + '"'),
        (b"Userspace-Cni-Warning-1:", ""),
        (b"Userspace-Cni-Warning-1", ""),
        (b"Userspace-Cni-Warn: a", ""),
        (b":", ""),
    ],
)
def test_what_any_agent_says(caller: Caller, line: bytes, said: str) -> None:
    """Headers that no agent of ours writes cause no control characters on a terminal, and no more text than there is room for."""
    with Agent(caller.socket, says(with_headers(line))):
        done = caller.run("ADD")
    assert (done.code, done.stdout) == (0, RESULT)
    assert lines_of(done) == ([f"level=warning {said}"] if said else [])


def test_more_warnings_than_an_answer_may_have(caller: Caller) -> None:
    """Our agent's last warning says where the others are; of another agent's warnings as many are printed."""
    with Agent(caller.socket, says(protocol.reply(200, RESULT, warnings=[f"w{number}" for number in range(99)]))):
        told = lines_of(caller.run("ADD"))
    assert len(told) == protocol.WARNINGS_MAX
    assert "see the agent's log" in told[-1]
    many = with_headers(*(b"Userspace-Cni-Warning-%d: w" % number for number in range(500)))
    with Agent(caller.directory / "many", says(many)):
        done = caller.run("ADD", USERSPACE_CNI_SOCKET=str(caller.directory / "many"))
    assert len([line for line in lines_of(done) if line.endswith('msg="w"')]) == protocol.WARNINGS_MAX


def test_the_longest_head_is_taken(caller: Caller) -> None:
    """As many warnings as there may be, as long as they may be and every byte encoded, fit what the shim reads as a head."""
    answer = protocol.reply(200, RESULT, warnings=[f"{number:02}" + "%" * 5000 for number in range(16)])
    assert len(answer[: answer.index(HEAD_END)]) < 64 << 10
    with Agent(caller.socket, says(answer)):
        done = caller.run("ADD")
    assert (done.code, done.stdout) == (0, RESULT)
    assert [len(line) for line in lines_of(done)] == [len('level=warning msg=""') + protocol.WARNING_MAX] * 16


def test_a_stderr_that_is_not_read(caller: Caller) -> None:
    """Warnings for which stderr has no room are lost, and the call is answered."""
    reader, writer = full_pipe()
    answer = protocol.reply(200, RESULT, warnings=[IGNORED] * 16)
    with reader, writer, Agent(caller.socket, says(answer)):
        process = subprocess.Popen([caller.program], env=caller.environ("ADD"), stdin=-1, stdout=-1, stderr=writer)
        with process:
            stdout, _ = process.communicate(NETWORK, timeout=60)
    assert (process.returncode, stdout) == (0, RESULT)


def test_a_closed_stderr(caller: Caller) -> None:
    """Without stderr, the warnings go nowhere: not into the socket, not to stdout."""
    with Agent(caller.socket, says(protocol.reply(200, RESULT, warnings=[IGNORED]))) as agent:
        command = ["sh", "-c", 'exec "$0" 2>&-', caller.program]
        with subprocess.Popen(command, env=caller.environ("ADD"), stdin=-1, stdout=-1, stderr=-1) as process:
            done = finish(process)
        assert (done.code, done.stdout, done.stderr) == (0, RESULT, "")
        assert protocol.read_request(agent.request)[1] == NETWORK


def test_a_del_that_is_spooled_has_its_warnings(caller: Caller) -> None:
    """An agent that is stopping may have sent warnings already; the DEL is spooled all the same."""
    with Agent(caller.socket, says(protocol.reply(503, TROUBLE, warnings=[IGNORED]))):
        done = caller.run("DEL")
    assert (done.code, done.stdout, len(caller.entries)) == (0, b"", 1)
    assert [IGNORED in line for line in lines_of(done)] == [True, False]


def test_no_result_reaches_stdout_and_the_add_is_undone(caller: Caller) -> None:
    """The warnings of the ADD and of the DEL that undoes it are both printed."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        answers = [says(protocol.reply(200, RESULT, warnings=[text])) for text in ("of the add", "of the del")]
        with Agent(caller.socket, *answers), caller.start("ADD", stdout=full) as process:
            done = finish(process)
    finally:
        os.close(full)
    assert [line for line in lines_of(done) if "of the" in line] == [
        'level=warning msg="of the add"',
        'level=warning msg="of the del"',
    ]

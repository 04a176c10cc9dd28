"""`why` of a node that is well, and of one that is broken in each way of the table."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.breaking.breakable_node import BreakableNode, breakable
from tests.lab.breaking.every_break import EVERY_BREAK
from tests.lab.breaking.page_samples import check_samples
from tests.lab.breaking.table import Break
from tests.lab.node.node import mounts_below
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.cli.command_line import load_command
from userspace_cni.cli.main import userspace_cni

_COMMAND = re.compile(r"`([^`]+)`")


def commands_in(text: str) -> list[list[str]]:
    """The commands that a remedy names, as words."""
    return [shlex.split(each) for each in _COMMAND.findall(text)]


def require_real(words: list[str], node: BreakableNode) -> None:
    """The command exists, and so do its options and rows."""
    if words[0] == "userspace-cni":
        command = load_command(userspace_cni.commands[words[1]])
        known = {option for each in command.params for option in each.opts}
        assert {each for each in words[2:] if each.startswith("-")} <= known, words
    elif words[0] == "ovs-vsctl":
        node.switch.vsctl("--no-wait", "--dry-run", *words[1:])
    else:
        assert shutil.which(words[0]) or words[0] in ("kubectl", "systemctl"), words


def told(node: BreakableNode, broken: Break, name: str) -> list[dict[str, Any]]:
    """The findings, as soon as the cause of this break is the first one."""

    def look() -> list[dict[str, Any]]:
        found = node.why(name)
        return found if [each["name"] for each in found][:1] == [broken.finding] else []

    try:
        return list(wait_until(look, 30, what=broken.finding))
    except AssertionError as error:
        raise AssertionError(f"{error}: {node.command('why', name).stdout}") from None


@pytest.mark.parametrize("broken", EVERY_BREAK, ids=[each.name for each in EVERY_BREAK])
def test_the_cause_is_named(switch: Switch, broken: Break) -> None:
    """Before the break nothing is wrong; after it `why` names the cause first, with a remedy that can be carried out.

    What docs/troubleshooting.md shows of it is what is printed.
    """
    with breakable(switch, broken.kind) as node:
        pod = node.pods[broken.kind]
        well = node.command("why", pod.name)
        assert well.returncode == 0, (well.stdout, well.stderr)
        assert [line for line in well.stderr.splitlines() if not line.startswith("looking at ")] == []  # on a busy machine
        assert "Nothing wrong was found." in well.stdout
        broken.make(node, pod)
        name = broken.asks or pod.name
        findings = told(node, broken, name)
        done = node.command("why", name)
        assert done.returncode == 1, done.stdout
        assert [words for words in broken.words if words.lower() not in done.stdout.lower()] == [], done.stdout
        assert findings[0]["remedy"]
        for words in commands_in(findings[0]["remedy"]):
            require_real(words, node)
        check_samples(node, broken.name)
        if broken.mended:
            command = commands_in(findings[0]["remedy"])[0]
            node.carry_out(command)
            mended = findings[0]["name"]
            wait_until(lambda: mended not in [each["name"] for each in node.why(name)], what=f"{command} to mend it")


def test_a_port_in_error_is_mended_in_its_steps(switch: Switch) -> None:
    """The agent is started, the file removed, ovs-vswitchd restarted: each look names what is left, and then nothing is wrong."""
    with breakable(switch, "served") as node:
        pod = node.pods["served"]
        [broken] = [each for each in EVERY_BREAK if each.name == "port_in_error"]
        broken.make(node, pod)
        first = told(node, broken, pod.name)[0]["remedy"]
        assert re.search("start the agent first, .*`rm .*restart ovs-vswitchd", first), first
        node.live.start()
        [remove, _] = commands_in(told(node, broken, pod.name)[0]["remedy"])
        subprocess.run(remove, check=True)
        second = told(node, broken, pod.name)[0]["remedy"]
        assert ("restart ovs-vswitchd" in second, "`rm " in second) == (True, False), second
        node.switch.restart_vswitchd()
        wait_until(lambda: broken.finding not in [each["name"] for each in node.why(pod.name)], what="the port to be open")


def test_an_examination(place: Path) -> None:
    """The program breaks a node of its own, whose settings a shell reads, tells afterwards what it was, and leaves nothing."""
    [number] = [number for number, each in enumerate(EVERY_BREAK, 1) if each.name == "name_misspelled"]
    environment = {**os.environ, "TMPDIR": str(place)}
    argv = [sys.executable, "-m", "tests.lab.breaking.exam", str(number)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as exam:
        assert exam.stdout
        said = "".join(iter(exam.stdout.readline, "Press Enter here, or send SIGTERM, when you know what it is.\n"))
        [shell] = re.findall(r"source (.+)\n {2}userspace-cni why default/apq\n", said)
        script = f"source {shell}; userspace-cni why app apq"
        asked = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert asked.returncode == 1, asked.stderr
        assert "default/app/net1: Nothing wrong was found." in asked.stdout
        assert "did you mean default/app/net1?" in asked.stdout
        answer, _ = exam.communicate("\n")
    assert "It was: name_misspelled" in answer
    assert exam.returncode == 0
    assert not Path(shell).exists()
    assert mounts_below(place) == []

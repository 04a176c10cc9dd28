"""What users expect of a command they do not know yet, of every command: help, examples, exit codes, and errors as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.lab.commands import arguments, documented_examples, runnable, walk
from userspace_cni.cli.command_line import ProgramGroup
from userspace_cni.cli.main import userspace_cni

COMMANDS = runnable()
GROUPS = {words: command for words, _, command in walk() if isinstance(command, click.Group) and words not in COMMANDS}
DEMANDING = {
    words: command for words, command in COMMANDS.items() if any(each.required for each in command.params) and words != "enter"
} | GROUPS
"""Commands that cannot be called without arguments."""
SERVICES = {"agent", "controller", "ovn watch", "ovn gateway-helper"}
"""They run until SIGTERM where nothing keeps them from it."""
ENDING = {"top": 2}
"""Which example ends by itself, if that is not the first."""
STREAMS = {"top"}
"""Their JSON is an object a line."""
WITHOUT_SETTINGS = {
    "completion",
    "kubevirt define",
    "kubevirt lint",
    "kubevirt manifests",
    "lint",
    "routes manifests",
    "schema network",
    "schema settings",
    "settings check",
    "tap",
}
"""They read no settings: they work on files alone, or in a pod."""
WITHOUT_ROOT = WITHOUT_SETTINGS - {"tap"} | {"controller", "routes apply", "settings show"}
"""`routes apply` in its first example, which writes nothing."""
WITHOUT_NODE = {
    **dict.fromkeys(("list", "check", "network", "gateway status", "routes check", "routes apply", "setup dpdk"), 0),
    **dict.fromkeys(("settings show", "support"), 0),
    **dict.fromkeys(("show", "why", "ping", "load", "capture", "uplink status", "uplink add", "uplink remove"), 1),
    **dict.fromkeys(("nic-to-bridge", "ovn nic-to-bridge", "routes explain", "routes flush", "enter"), 1),
}
"""The exit code of the first example where neither agent nor switch can be reached, if that is not 3.

0 where records, settings or files answer and are empty, 1 where they say that what the example names is not there.
"""
NAMELESS = {"capture words", "enter command", "ovn trace source", "ovn trace target", "routes explain dst"}
"""Arguments that name nothing of this node."""
ROUTE = """
apiVersion: k8s.ovn.org/v1
kind: Route
metadata: {name: a}
spec: {route: [{dst: 10.0.0.0/8, dev: net1}]}
"""
"""The content of the files that examples name."""


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> Mapping[str, Any]:
        """The object that tells of a failure, which is all of stdout."""
        [line] = self.stdout.splitlines()
        told: dict[str, Any] = json.loads(line)
        assert set(told) == {"error", "details", "code"}
        assert told["error"]
        assert told["code"] == self.code
        assert told["error"] in self.stderr
        assert told["details"] in self.stderr
        return told


def call(*words: str) -> Ended:
    done = CliRunner().invoke(userspace_cni, words, prog_name="userspace-cni")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return Ended(done.exit_code, done.stdout, done.stderr)


def example_of(words: str) -> list[str]:
    """The arguments of an example, which ask for JSON if the command can give it."""
    command = COMMANDS[words]
    example = command.examples[ENDING.get(words, 0)]
    found = [each.replace("eth1", "no-nic0") for each in arguments(example) if each != "--json"]
    options = {name for each in command.params for name in each.opts}
    return found + [each for each in ("--json", "--yes") if each in options and each not in found]


def takes_json(words: str) -> bool:
    return "--json" in example_of(words)


# -- help ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [*COMMANDS, *GROUPS])
def test_help_in_its_three_ways(words: str) -> None:
    """`-h`, `--help` and `help` say the same, and so does `help` in the command's group."""
    path = words.split()
    whole = call(*path, "--help")
    assert (whole.code, whole.stderr) == (0, "")
    assert call(*path, "-h") == call("help", *path) == call(*path[:-1], "help", path[-1]) == whole


@pytest.mark.parametrize("words", GROUPS)
def test_help_of_a_group(words: str) -> None:
    """A group without a command shows its commands, and ends with 2, as nothing was done; `help` in it is no mistake."""
    alone, asked = call(*words.split()), call(*words.split(), "help")
    assert (alone.code, alone.stdout) == (2, "")
    assert (asked.code, asked.stdout.strip()) == (0, alone.stderr.strip())


def test_the_program_alone() -> None:
    """It shows its commands by purpose, each in one line, and ends with 0."""
    alone = call()
    assert (alone, alone.code) == (call("--help"), 0)
    assert alone == call("help")
    assert isinstance(userspace_cni, ProgramGroup)
    listed = [name for names in userspace_cni.purposes.values() for name in names]
    assert sorted(listed) == sorted(set(listed))
    assert {name for name, command in userspace_cni.commands.items() if not command.hidden} <= set(listed), "give it a purpose"
    assert [line for line in alone.stdout.splitlines() if line.endswith("...") and "[ARGS]..." not in line] == []


def test_each_example_is_in_the_reference() -> None:
    """Help and docs/commands.md have the same examples, in the same order."""
    documented = documented_examples()
    assert {words: command.examples for words, command in COMMANDS.items()} == {words: documented[words] for words in COMMANDS}


@pytest.mark.parametrize("words", COMMANDS)
def test_each_command_has_examples_that_parse(words: str) -> None:
    """Each command has an example, which its help shows whole, and whose options and arguments it takes."""
    command = COMMANDS[words]
    assert command.examples
    shown = call(*words.split(), "--help").stdout
    assert "\nExamples:\n" in shown
    for example in command.examples:
        assert f"  {example}\n" in shown
        try:
            context: click.Context = userspace_cni.make_context("userspace-cni", arguments(example))
            while context.command != command:
                group = context.command
                assert isinstance(group, click.Group)
                word, below, rest = group.resolve_command(context, [*context._protected_args, *context.args])
                assert below is not None
                context = below.make_context(word, rest, parent=context)
        except click.BadParameter as error:
            assert "does not exist" in error.message, example  # noqa: PT017 - a file of the example


def test_each_argument_can_be_completed() -> None:
    """A shell is offered what an argument can be: a choice, a file, or names of this node."""
    arguments_of = {
        f"{words} {each.name}": each
        for words, command in COMMANDS.items()
        for each in command.params
        if isinstance(each, click.Argument) and not isinstance(each.type, (click.Choice, click.Path))
    }
    assert {name for name, each in arguments_of.items() if each._custom_shell_complete is None} == NAMELESS


# -- wrong calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [*COMMANDS, *GROUPS])
def test_an_unknown_option(words: str) -> None:
    """It is a usage error, told on stderr; with `--json` it is an object on stdout, too, also where the command has no JSON."""
    plain = call(*words.split(), "--no-such-option")
    assert (plain.code, plain.stdout) == (2, "")
    assert "Error: " in plain.stderr
    assert call(*words.split(), "--no-such-option", "--json").error["code"] == 2


@pytest.mark.parametrize("words", DEMANDING)
def test_a_missing_argument(words: str) -> None:
    """It is a usage error, and an object with `--json`."""
    assert call(*words.split()).code == 2
    assert call(*words.split(), "--json").error["code"] == 2


@pytest.mark.parametrize(
    ("call_", "meant"),
    [
        ("lsit", "list"),
        ("chekc", "check"),
        ("routes explian", "explain"),
        ("list --jsno", "--json"),
        ("ovn init-node --no-managment-port", "--no-management-port"),
        ("list -o jsno", "json"),
        ("agent probe helthz", "healthz"),
    ],
)
def test_did_you_mean(call_: str, meant: str) -> None:
    """A misspelt command, option or value is answered with the one that is meant, on stderr and in JSON."""
    ended = call(*call_.split(), "--json")
    assert (ended.code, ended.error["details"]) == (2, f"did you mean '{meant}'?")
    assert f"did you mean '{meant}'?" in call(*call_.split()).stderr


@pytest.mark.parametrize(("words", "meant"), [("help routs", "routes"), ("routes help lists", "list")])
def test_did_you_mean_in_help(words: str, meant: str) -> None:
    """So is a command that is not there to be helped with."""
    ended = call(*words.split())
    assert (ended.code, f"did you mean '{meant}'?" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        ("list --nope --json", True),
        ("list --nope -o json", True),
        ("list --nope -ojson", True),
        ("list --nope --output=json", True),
        ("list --nope -o wide", False),
        ("list --nope -- --json", False),
        ("enter --nope", False),
        ("enter no_pod ip --json addr", False),
    ],
)
def test_who_asks_for_json(words: str, asks: bool) -> None:
    """Only an option of ours asks for it: no argument after `--`, and none of a program that `enter` is to run."""
    ended = call(*words.split())
    assert (ended.code > 0, bool(ended.stdout)) == (True, asks)


# -- a node that does not answer -----------------------------------------------------------------------------------------


def _be_nobody(directory: str, environ: Mapping[str, str], calls: list[list[str]], answer: Connection) -> None:
    """Make the calls, in this process, as a user who is not root, and send how each ended."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    os.environ |= environ
    os.chdir(directory)
    for each in calls:
        answer.send(call(*each))


def as_nobody(directory: Path, calls: list[list[str]], **environ: str) -> list[Ended]:
    """How the calls end for a user who is not root, on a node with neither agent nor switch, whose directories he has."""
    for name in ("state", "run", "short", "ovs"):
        (directory / name).mkdir(mode=0o700)
        os.chown(directory / name, *((65534, 65534) if os.geteuid() == 0 else (-1, -1)))
    directory.chmod(0o755)
    for name in {word for each in calls for word in each if word.endswith(".yaml") and "/" not in word}:
        (directory / name).write_text(ROUTE)
    own = {f"USERSPACE_CNI_{name.upper()}_DIR": f"{directory}/{name}" for name in ("state", "run", "short")}
    own |= {"USERSPACE_CNI_OVSDB": f"unix:{directory}/none", "OVS_RUNDIR": f"{directory}/ovs", "CNI_PATH": str(directory)}
    (directory / "empty.toml").touch()
    own |= {"USERSPACE_CNI_CONFIG": f"{directory}/empty.toml", "USERSPACE_CNI_CNI_CACHE_DIR": f"{directory}/cache"}
    own |= {"USERSPACE_CNI_CRI_SOCKET": f"{directory}/none", "USERSPACE_CNI_KUBELET_DIR": f"{directory}/kubelet"}
    own |= {"USERSPACE_CNI_ROUTES": "true", "USERSPACE_CNI_ROUTES_FILE": f"{directory}/routes"}
    own |= {"USERSPACE_CNI_OVN_NB": f"unix:{directory}/none", "USERSPACE_CNI_OVN_SB": f"unix:{directory}/none"}
    hears, tells = multiprocessing.get_context("forkserver").Pipe(duplex=False)
    process = multiprocessing.get_context("forkserver").Process(
        target=_be_nobody, args=(str(directory), {**own, **environ}, calls, tells)
    )
    process.start()
    tells.close()
    ended: list[Ended] = []
    try:
        for each in calls:
            assert hears.poll(60), f"{each} does not end: give it an example that does, or name it in SERVICES"
            ended.append(hears.recv())
    finally:
        if len(ended) < len(calls):
            process.kill()
        process.join(60)
        hears.close()
    assert process.exitcode == 0
    return ended


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name, which others can enter, too."""
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as made:
        yield Path(made)


def test_a_bad_settings_file(place: Path) -> None:
    """Each command that reads settings ends with 2 and names file and key, before it does or asks anything."""
    bad = place / "bad.toml"
    bad.write_text('stat_dir = "/nowhere"\n')
    tested = [words for words in COMMANDS if words not in WITHOUT_SETTINGS]
    ended = as_nobody(place, [example_of(words) for words in tested], USERSPACE_CNI_CONFIG=str(bad))
    for words, each in zip(tested, ended, strict=True):
        assert each.code == 2, (words, each)
        assert "bad.toml" in each.stderr, (words, each)
        if takes_json(words):
            assert "stat_dir" in each.error["error"], words


def test_a_user_who_is_not_root(place: Path) -> None:
    """Each command that needs root says so and ends with 3."""
    closed = place / "closed"
    closed.mkdir(mode=0o000)
    tested = [words for words in COMMANDS if words not in WITHOUT_ROOT]
    named = {f"USERSPACE_CNI_{name}_DIR": f"{closed}/{name}" for name in ("STATE", "RUN", "SHORT")}
    ended = as_nobody(place, [example_of(words) for words in tested], **named)
    for words, each in zip(tested, ended, strict=True):
        assert each.code == 3, (words, each)
        if takes_json(words):
            assert each.error["code"] == 3, words


def test_neither_agent_nor_switch(place: Path) -> None:
    """A command that cannot reach what it asks ends with 3; stdout is one JSON value in any case.

    Not `uninstall`, which looks for things of the former plugin everywhere.
    """
    tested = [words for words in COMMANDS if words not in WITHOUT_SETTINGS | SERVICES | {"uninstall"}]
    ended = as_nobody(place, [example_of(words) for words in tested])
    codes = {words: each.code for words, each in zip(tested, ended, strict=True)}
    assert codes == {words: WITHOUT_NODE.get(words, 3) for words in tested}
    for words, each in zip(tested, ended, strict=True):
        if takes_json(words):
            for value in each.stdout.splitlines() if words in STREAMS else [each.stdout]:
                json.loads(value)

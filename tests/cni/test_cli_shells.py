"""bash, zsh and fish complete the program's commands, options, choices and names, whatever state the node is in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cni.spec import paused_ovsdb, paused_vswitchd, switch_of
from tests.lab.node.node import Node
from tests.lab.shells import TAB, shell
from userspace_cni.cli.completion import SCRIPTS

PROGRAM = Path(sys.executable).parent / "userspace-cni"
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={};K8S_POD_UID=0d0a1b2c-1111-2222-3333-444455556666"
BASH = """
source <({program} completion bash)
COMP_WORDS=({typed}) ; [[ {typed_raw} == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_userspace_cni_completion "${{COMP_WORDS[0]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "{program} completion fish | source; complete -C {typed_raw}"


@pytest.fixture
def attached(node: Node, sandbox: str) -> Iterator[dict[str, str]]:
    """The variables of a node with three attachments of a pod, on which neither switch nor agent answers."""
    networks = [("net1", "blue"), ("net2", "red"), ("lan1", "blue")]
    for ifname, name in networks:
        assert (
            node.run("ADD", node.network(name=name, host=SERVER), sandbox, ifname=ifname, CNI_ARGS=POD.format("web-1")).status
            == 0
        )
    settings = node.directory / "settings.toml"
    settings.write_text('[[provider_network]]\nname = "physnet1"\ninterface = "eth1"\n')
    environ = {**node.environ, "USERSPACE_CNI_CONFIG": str(settings), "HOME": str(node.directory)}
    environ["PATH"] = f"{PROGRAM.parent}:{os.environ['PATH']}"
    switch = switch_of(node)
    with socket.socket(socket.AF_UNIX) as agent, paused_ovsdb(switch), paused_vswitchd(switch):
        (node.directory / "run").mkdir(exist_ok=True)
        agent.bind(str(node.directory / "run" / "agent.sock"))
        agent.listen()
        yield environ
    for ifname, name in networks:
        assert (
            node.run("DEL", node.network(name=name, host=SERVER), sandbox, ifname=ifname, CNI_ARGS=POD.format("web-1")).status
            == 0
        )


SERVER = {"engine": "ovs-dpdk", "iftype": "vhostuser", "vhost": {"mode": "server"}, "bridge": {"bridgeName": "br-test"}}


def bash(typed: str, environ: Mapping[str, str], program: str) -> list[str]:
    """What bash's function offers for a line."""
    words = " ".join(f"'{word}'" for word in typed.split())
    script = BASH.format(program=program, typed=words, typed_raw=f"'{typed}'")
    done = subprocess.run(["bash", "--norc", "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def fish(typed: str, environ: Mapping[str, str], program: str) -> list[str]:
    """What fish offers for a line, without the descriptions."""
    script = FISH.format(program=program, typed_raw=f"'{typed}'")
    done = subprocess.run(["fish", "--no-config", "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


OFFERED = [
    ("che", ["check"]),
    ("rou", ["routes"]),
    ("hel", ["help"]),
    ("help routes e", ["explain"]),
    ("routes e", ["explain"]),
    ("list --j", ["--json"]),
    ("list -o ", ["json", "wide"]),
    ("agent probe ", ["healthz", "readyz"]),
    ("completion ", ["bash", "fish", "zsh"]),
    ("show ", ["default/web-1/lan1", "default/web-1/net1", "default/web-1/net2"]),
    ("show default/web-1/net1 default/web-1/n", ["default/web-1/net2"]),
    ("why default/web-1/l", ["default/web-1/lan1"]),
    ("ping default/web-1/net1 default/web-1/l", ["default/web-1/lan1"]),
    ("list --network ", ["blue", "red"]),
    ("probe br-te", ["br-test"]),
    ("ping --bridge br-te", ["br-test"]),
    ("uplink add ", ["physnet1"]),
    ("enter def", ["default/web-1"]),
    ("routes list --pod ", ["default/web-1"]),
    ("nic-to-bridge l", ["lo"]),
    ("show nowhere/", []),
]


@pytest.mark.parametrize("ask", [bash, fish])
@pytest.mark.parametrize("program", ["userspace-cni", str(PROGRAM)], ids=["name", "path"])
def test_what_is_offered(attached: dict[str, str], ask: Callable[..., list[str]], program: str) -> None:
    """Each shell offers the same words, for the program by its name and by its path, and says nothing else."""
    found = {typed: sorted(ask(f"{program} {typed}", attached, program)) for typed, _ in OFFERED}
    assert found == dict(OFFERED)


@pytest.mark.parametrize("name", ["bash", "zsh"])
@pytest.mark.parametrize("program", ["userspace-cni", str(PROGRAM)], ids=["name", "path"])
def test_at_the_keyboard(attached: dict[str, str], name: str, program: str) -> None:
    """A key completes what is typed, and lists what it may be."""
    with shell(name, attached) as opened:
        if name == "zsh":
            opened.run("autoload -U compinit && compinit -D -u")
        opened.run(f"source <({program} completion {name})")
        opened.type(f"{program} chec{TAB}")
        opened.see("check ")
        opened.type(f"\x15{program} show d{TAB}{TAB}{TAB}")
        opened.see("default/web-1/lan1", "default/web-1/net1", "default/web-1/net2")
        opened.type(f"\x15{program} list --netw{TAB}")
        opened.see("--network ")
        opened.type(f"r{TAB}")
        opened.see("red ")


def test_with_bash_completion(attached: dict[str, str]) -> None:
    """It works beside the package bash-completion, as a file that this loads."""
    directory = Path(attached["HOME"]) / ".local/share/bash-completion/completions"
    directory.mkdir(parents=True)
    (directory / "userspace-cni").write_text(SCRIPTS["bash"])
    with shell("bash", attached) as opened:
        opened.run("source /usr/share/bash-completion/bash_completion")
        opened.type(f"userspace-cni show default/web-1/l{TAB}")
        opened.see("default/web-1/lan1 ")


def test_as_a_file_of_zsh(attached: dict[str, str]) -> None:
    """It works as a file in zsh's fpath, which is loaded at the first key."""
    directory = Path(attached["HOME"]) / "functions"
    directory.mkdir()
    (directory / "_userspace-cni").write_text(SCRIPTS["zsh"])
    with shell("zsh", attached) as opened:
        opened.run(f"fpath=({directory} $fpath); autoload -U compinit && compinit -D -u")
        opened.type(f"userspace-cni show default/web-1/l{TAB}")
        opened.see("default/web-1/lan1 ")


@pytest.mark.parametrize("settings", ["no_such_key = 1", "state_dir = 5", "[[["])
def test_settings_that_cannot_be_read(attached: dict[str, str], settings: str) -> None:
    """Then no names are offered, and no message, but commands and options are."""
    Path(attached["USERSPACE_CNI_CONFIG"]).write_text(settings)
    assert bash("userspace-cni show ", attached, "userspace-cni") == []
    assert bash("userspace-cni show --j", attached, "userspace-cni") == ["--json"]


def test_a_user_who_may_not_read_the_records(attached: dict[str, str]) -> None:
    """He is offered no names of attachments, and no message."""
    script = ["setpriv", "--reuid=65534", "--clear-groups", "env", "COMP_WORDS=userspace-cni show ", "COMP_CWORD=2"]
    environ = {**attached, "_USERSPACE_CNI_COMPLETE": "bash_complete"}
    done = subprocess.run([*script, str(PROGRAM)], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("\n", "")

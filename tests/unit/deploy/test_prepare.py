"""What is installed for tests of a kind: the packages of their programs; and nothing when dpkg cannot say what is installed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.lab.suite import exercised
from tests.lab.suite.tree import Tree
from tests.lab.switch.switch import wait_until

ROOT = Path(__file__).resolve().parents[3]
PREPARE = ROOT / "deploy" / "prepare.sh"
KINDS = sorted({path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")})
PACKAGES = {
    "containerd": "containerd ctr",
    "curl": "curl",
    "debootstrap": "debootstrap",
    "dpdk-dev": "dpdk-testpmd",
    "ethtool": "ethtool",
    "fish": "fish",
    "gcc": "gcc",
    "git": "git",
    "golang-go": "go",
    "iperf3": "iperf3",
    "iproute2": "ip tc ss",
    "iptables": "iptables iptables-save",
    "iputils-ping": "ping",
    "jq": "jq",
    "libvirt-clients": "virsh virt-xml-validate",
    "libvirt-daemon": "libvirtd",
    "libxml2-utils": "xmllint",
    "man-db": "man",
    "mandoc": "mandoc",
    "nftables": "nft",
    "openssl": "openssl",
    "openvswitch-switch": "ovs-appctl ovs-ofctl ovs-vsctl ovs-vswitchd ovsdb-client ovsdb-server ovsdb-tool",
    "ovn-central": "ovn-northd",
    "ovn-host": "ovn-controller",
    "podman": "podman",
    "procps": "pgrep ps sysctl",
    "prometheus": "prometheus promtool",
    "qemu-system-x86": "qemu-system-x86_64",
    "runc": "runc",
    "tcpdump": "tcpdump",
    "zsh": "zsh",
}
"""Package -> its programs that tests may start."""
PACKAGE_OF = {program: package for package, programs in PACKAGES.items() for program in programs.split()}
NAMED = re.compile(f"""["'](?:{"|".join(map(re.escape, PACKAGE_OF))})["']""")
"""A text that is one of them: without it, a module need not be parsed."""


def asked(*kinds: str) -> set[str]:
    """The packages that the script would install on an empty machine."""
    done = subprocess.run(["bash", PREPARE, "--print", *kinds], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@cache
def known() -> exercised.Exercised:
    """The map of what each test file exercises."""
    return exercised.read()


@cache
def tree() -> Tree:
    return Tree.at(ROOT)


@cache
def commands(path: str) -> dict[str, set[str]]:
    """Per function of a module, and "" for the rest, the programs that are words of a command: of a list, a tuple or a call."""
    found: dict[str, set[str]] = {}
    if not NAMED.search(tree().texts[path]):
        return found

    def look(node: ast.AST, inside: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*inside, node.name)
        if isinstance(node, ast.List | ast.Tuple | ast.Call):
            words = node.args if isinstance(node, ast.Call) else node.elts
            texts = {word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)}
            found.setdefault(".".join(inside), set()).update(texts & PACKAGE_OF.keys())
        for child in ast.iter_child_nodes(node):
            look(child, inside)

    look(ast.parse(tree().texts[path]), ())
    return found


def started(kind: str) -> dict[str, str]:
    """The programs of a kind's tests, each with its place: in a test file, or in a function of the lab that one has called.

    For a test file without a record: in the modules of the lab that it imports, directly or indirectly.
    """
    found: dict[str, str] = {}
    for test in (path for path in tree().tests if path.startswith(f"tests/{kind}/")):
        found |= {program: test for programs in commands(test).values() for program in programs}
        if test in known():
            called = (mark.partition(":")[::2] for mark in known()[test] if mark.startswith("tests/"))
            places = [(path, name) for path, name in called if path in tree().texts]
        else:
            places = [(path, name) for path in tree().reached(test) if path.startswith("tests/") for name in commands(path)]
        found |= {program: f"{path}: {name}" for path, name in places for program in commands(path).get(name, ())}
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unit"])
def test_what_the_programs_of_a_kind_come_from(kind: str) -> None:
    """Each program that its tests name as a word of a command. What a script or another program starts is not seen here."""
    programs = started(kind)
    assert programs
    packages = asked(kind)
    assert {program: where for program, where in programs.items() if PACKAGE_OF[program] not in packages} == {}


def test_kinds_of_the_table() -> None:
    """All directories of tests, and the demo; without a kind, all of them."""
    everything = asked()
    assert everything == set().union(*(asked(kind) for kind in (*KINDS, "demo")))
    assert asked("ovs", "host") == asked("host") | asked("ovs")
    assert {name for name in everything if re.match("qemu|libvirt|golang|clang|podman|containerd", name)}.isdisjoint(asked("cni"))
    assert {"openvswitch-switch-dpdk", "musl-tools"} <= asked("cni")
    assert {"git", "openssl"} < asked("unit") < asked("cni")


def test_a_kind_that_is_not_there() -> None:
    """Is an error that names those that are."""
    done = subprocess.run(["bash", PREPARE, "nothing"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip().split(": ")[2].split()) == (2, sorted([*KINDS, "demo"]))


def test_a_dpkg_that_cannot_be_asked(tmp_path: Path) -> None:
    """The script ends with 1, names the package that it asked for, and has not called apt-get."""
    called = tmp_path / "called"
    for program, body in {"dpkg-query": "exit 2", "apt-get": f"touch {called}; exit 1"}.items():
        file = tmp_path / program
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", PREPARE, "unit"], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, called.exists()) == (1, False)
    assert done.stderr == "prepare: dpkg-query, asked for gcc, ended with 2\n"


class Installing:
    """Runs of the script in a tree of their own, which find one package missing. A directory replaces /usr/sbin.

    Their apt-get writes to a file of the run's name that it has begun, waits for the file `go`, and reports at its end whether
    services may not be started.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.policy = place / "sbin" / "policy-rc.d"
        self.policy.parent.mkdir()
        self.script = place / "tree" / "deploy" / PREPARE.name
        self.script.parent.mkdir(parents=True)
        for each in (PREPARE, PREPARE.with_name("stages.sh")):
            shutil.copy(each, self.script.parent)
        for name in ("pyproject.toml", "constraints.txt", "userspace_cni"):
            (place / "tree" / name).symlink_to(ROOT / name)
        for program, body in {
            "tree/.venv/bin/python": "",
            "tree/.venv/bin/pip": f"""[ -n "$PIP" ] || exit 0
printf "$PIP"
until [ -e {place}/$RUN.pip ]; do sleep 0.02; done""",
            "dpkg-query": '[ "$3" = gcc ] && exit 1; echo "install ok installed"',
            "apt-get": f"""[ "$1" = install ] || exit 0
touch {place}/$RUN.begun
[ -z "$APT" ] || printf "$APT" >&3
until [ -e {place}/$RUN.go ]; do sleep 0.02; done
[ -e /usr/sbin/policy-rc.d ] && touch {place}/$RUN.kept""",
        }.items():
            file = place / program
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"#!/bin/sh\n{body}\n")
            file.chmod(0o755)

    def start(self, run: str, **variables: str) -> subprocess.Popen[str]:
        """A run of this name, as the leader of a process group."""
        script = f"mount --bind {self.policy.parent} /usr/sbin && exec bash {self.script} unit"
        environ = {**os.environ, "PATH": f"{self.place}:{os.environ['PATH']}", "RUN": run, **variables}
        argv = ["unshare", "--mount", "--map-root-user", "bash", "-c", script]
        return subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def said(self, run: str, what: str) -> bool:
        """Whether the run's apt-get has `begun`, or has ended with the file `kept`."""
        return (self.place / f"{run}.{what}").exists()

    def let_go(self, run: str) -> None:
        """Have the run's apt-get end."""
        (self.place / f"{run}.go").touch()

    @staticmethod
    def waits(run: subprocess.Popen[str]) -> bool:
        """Whether the run waits for another one, in a program `flock` of its process group.

        /proc/locks does not tell in a container: it shows no lock whose process, here a former `flock`, has ended.
        """
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                program = (process / "cmdline").read_text().split("\0")
                if program[:2] == ["flock", "9"] and os.getpgid(int(process.name)) == run.pid:
                    return True
        return False


@pytest.fixture
def installing(tmp_path: Path) -> Installing:
    """No run is started yet."""
    return Installing(tmp_path)


def test_two_at_once(installing: Installing) -> None:
    """The second run waits for the end of the first, which then removes what keeps services from being started."""
    first = installing.start("first")
    wait_until(lambda: installing.said("first", "begun"))
    second = installing.start("second")
    wait_until(lambda: installing.waits(second) or installing.said("second", "begun"))
    for name, run in (("first", first), ("second", second)):
        installing.let_go(name)
        _, told = run.communicate(timeout=60)
        assert (run.returncode, installing.said(name, "kept")) == (0, True), told
    assert "waiting for another run" in told
    assert not installing.policy.exists()


APT = """\
dlstatus:1:2.0:Retrieving file 3 of 60 (12s remaining)
pmstatus:zsh:35.0:Preparing zsh (amd64)
pmstatus:zsh:35.0:Unpacking zsh (amd64)
pmstatus:jq:36.0:Unpacking jq (amd64)
pmstatus:jq:36.0:Unpacking jq (amd64)
pmstatus:man-db:37.0:Configuring man-db:amd64 (amd64)
pmstatus:man-db:38.0:Installed man-db (amd64)
"""
PIP = """\
Obtaining file:///tree
  Installing build dependencies: started
Collecting rich>=13 (from userspace-cni==0.1.0)
Processing /wheels/pyyaml-6.0.3-cp311.whl
Installing collected packages: rich, pyyaml
"""


def test_what_is_installed_is_told_meanwhile(installing: Installing) -> None:
    """Of apt and of pip it is printed which package is fetched and unpacked, and of how many."""
    pinned = (ROOT / "constraints.txt").read_text().count("==")
    then = {
        "fetching file 3 of 60": "",
        "unpacking package 1 of 60: zsh": "",
        "unpacking package 2 of 60: jq": "",
        "configuring package 1 of 60: man-db": "go",
        "fetching the tools that compile": "",
        f"fetching package 1 of {pinned}: rich": "",
        f"fetching package 2 of {pinned}: pyyaml": "",
        "unpacking the packages": "pip",
    }
    told = []
    with installing.start("only", APT=APT, PIP=PIP, STAGE_EVERY_S="0") as run:
        for line in run.stderr or ():
            text = line.removeprefix("prepare: ").partition(" (")[0].strip()
            if text in then and text not in told:
                told.append(text)
                if then[text]:
                    (installing.place / f"only.{then[text]}").touch()
    assert (run.returncode, told) == (0, list(then))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_end(installing: Installing, number: signal.Signals) -> None:
    """When it is ended during apt-get, what keeps services from being started is removed all the same."""
    run = installing.start("only")
    wait_until(lambda: installing.said("only", "begun"))
    assert installing.policy.exists()
    os.killpg(run.pid, number)
    run.communicate(timeout=60)
    assert run.returncode != 0
    wait_until(lambda: not installing.policy.exists())


@pytest.mark.parametrize("killed", [True, False])
def test_a_policy_that_is_there(installing: Installing, *, killed: bool) -> None:
    """An existing policy stays, unless a killed run has left it."""
    if killed:
        run = installing.start("killed")
        wait_until(lambda: installing.said("killed", "begun"))
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)
    else:
        installing.policy.write_text("#!/bin/sh\nexit 101\n")
    assert installing.policy.exists()
    installing.let_go("next")
    run = installing.start("next")
    _, told = run.communicate(timeout=60)
    assert (run.returncode, installing.said("next", "kept"), installing.policy.exists()) == (0, True, not killed), told

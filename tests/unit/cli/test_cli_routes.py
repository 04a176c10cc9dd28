"""The commands about routes in pods: their arguments, how they show an agent's answer, and how they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.lab.node.world import World
from tests.unit.cli.test_cli_client import answering, told
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.settings import Settings
from userspace_cni.cli.agent_client import AgentClient, DeadAgent, NoAgent, RoutesOff
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.site import Site

ROUTE = {
    "name": "low-latency",
    "generation": 1,
    "usable": True,
    "problems": [],
    "remarks": [],
    "told": [],
    "pods": {"matched": 2, "applied": 1, "skipped": 1, "failed": 0},
}
POD: dict[str, Any] = {
    "namespace": "default",
    "name": "web-0",
    "uid": "u",
    "sandbox": "a",
    "netns": "/x",
    "source": "cache",
    "state": "applied",
    "host_network": False,
    "routes": ["low-latency"],
    "wanted": [
        {"dst": "default (IPv4)", "dev": "eth1", "via": "10.2.0.1", "metric": 0, "route": "low-latency", "why": "named"},
        {"dst": "10.9.0.0/16", "dev": "eth1", "via": "", "metric": 0, "route": "low-latency", "why": "on-link"},
    ],
    "skipped": ["low-latency: spec.route[2]: the pod has no device eth2"],
    "refused": ["10.9.0.0/16 dev eth1: Invalid argument"],
    "conflicts": ["other: spec.route[0]: Route 'low-latency' has it"],
    "overridden": [],
    "problem": "",
}
TOLD = {
    "routes": [ROUTE],
    "pods": [POD, {**POD, "name": "web-1", "routes": []}],
    "problems": {"api": "it is away"},
    "unreadable": 1,
}

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """One command on a node whose setting is on, unless `routes` says otherwise."""

    def command(*arguments: str, routes: bool = True, given: str = "") -> Result:
        settings = Settings(state_dir=str(tmp_path), run_dir=str(tmp_path / "run"), short_dir=str(tmp_path), routes=routes)
        site = Site(settings, World(tmp_path, resident=True, now=100), environ={})
        return CliRunner().invoke(userspace_cni, arguments, input=given, obj=site)

    return command


def says(monkeypatch: pytest.MonkeyPatch, answer: Any, now: Mapping[str, tuple[str, str]] | None = None) -> None:
    """The agent's answer, or the error with which it cannot be reached.

    `now`: of destinations, what a look into a pod shows and what is there instead; others are there, but in pods with a problem.
    """

    def see(_: object, pods: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for pod in pods:
            looked = ("", "") if pod["problem"] else ("there", "")
            found = [(now or {}).get(each["dst"], looked) for each in pod["wanted"]]
            wanted = [
                {**each, "now": is_now, "instead": other} for each, (is_now, other) in zip(pod["wanted"], found, strict=True)
            ]
            yield {**pod, "wanted": wanted, "unseen": pod["problem"]}

    monkeypatch.setattr("userspace_cni.cli.routes.list_routes.see_routes", see)

    def routes(_: AgentClient, *, look: bool = False) -> Any:
        assert not look
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(AgentClient, "routes", routes)


def cells(result: Result) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in result.stdout.splitlines() if line]


def test_routes_and_pods_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each route wanted or reported of a pod is a line with its owner; what the agent cannot read is on stderr."""
    says(monkeypatch, TOLD, {"10.9.0.0/16": ("missing", "")})
    result = run("routes", "list", "--pod", "default/web-0")
    assert result.exit_code == 0
    assert cells(result) == [
        ["ROUTE", "STATE", "PODS", "APPLIED", "SKIPPED", "FAILED", "DETAILS"],
        ["low-latency", "good", "2", "1", "1", "0"],
        ["POD", "STATE", "ROUTE", "DETAILS"],
        ["default/web-0", "there", "low-latency", "default via 10.2.0.1 dev eth1 (named)"],
        ["default/web-0", "refused", "low-latency", "10.9.0.0/16 dev eth1: Invalid argument (by the kernel)"],
        ["default/web-0", "skipped", "low-latency", "spec.route[2]: the pod has no device eth2"],
        ["default/web-0", "conflict", "other", "spec.route[0]: Route 'low-latency' has it"],
    ]
    assert result.stderr.splitlines() == ["api: it is away", "1 file of the runtime's cache could not be used"]


def test_a_route_that_went_since_the_agent_looked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, or behind another program's, which is named; its Route is good in part, and the pod comes first."""
    whole = {**POD, "refused": [], "skipped": [], "conflicts": []}
    says(
        monkeypatch,
        {**TOLD, "pods": [{**whole, "name": "web-1", "wanted": whole["wanted"][:1]}, whole]},
        {"10.9.0.0/16": ("behind", "10.9.0.0/16 via 10.2.0.9 dev eth1")},
    )
    result = run("routes", "list")
    missing = "routes are missing in 1 pod: the agent looks at each pod every 10 minutes, and at all of them on SIGHUP"
    assert missing in result.stderr.splitlines()
    lines = cells(result)
    assert lines[1] == ["low-latency", "in part", "2", "1", "1", "0", "missing in 1 pod"]
    text = "10.9.0.0/16 dev eth1 (on-link); another program's 10.9.0.0/16 via 10.2.0.9 dev eth1 comes before it"
    assert lines[3:] == [
        ["default/web-0", "missing", "1 there, 1 behind", text],
        ["default/web-1", "applied", "1 there"],
    ]
    says(monkeypatch, {**TOLD, "pods": [whole]}, {"10.9.0.0/16": ("missing", "10.9.0.0/16 dev eth0")})
    text = "10.9.0.0/16 dev eth1 (on-link); another program's 10.9.0.0/16 dev eth0 is in its place"
    assert cells(run("routes", "list", "--all"))[-1] == ["default/web-0", "missing", "low-latency", text]


def test_a_container_without_a_name_is_called_by_its_id(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown with as much of the ID as `--pod` accepts; an ID that a person chose is shown whole."""
    nameless = {**POD, "namespace": "", "name": "", "uid": "", "wanted": [], "refused": [], "conflicts": []}
    ids = ("5f" * 32, "my-sandbox")
    says(monkeypatch, {**TOLD, "pods": [{**nameless, "sandbox": each} for each in ids]})
    shown = [line[0] for line in cells(run("routes", "list"))[-2:]]
    assert shown == ["5f5f5f5f5f5f", "my-sandbox"]
    for each in shown:
        assert cells(run("routes", "list", "--pod", each))[-1][0] == each


def test_one_pod_as_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has the pod and the Routes that concern it; an unknown pod is a failure that names what could not be read."""
    says(monkeypatch, TOLD)
    found = json.loads(run("routes", "list", "--pod", "default/web-1", "--json").stdout)
    assert (found["routes"], [each["name"] for each in found["pods"]]) == ([], ["web-1"])
    result = run("routes", "list", "--pod", "default/web-2")
    assert (result.exit_code, "no network namespace of pod default/web-2" in result.stderr) == (1, True)
    assert "api: it is away" in result.stderr


def test_what_is_wrong_of_a_route(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Route that is unusable, or refused in part, is shown with the reason."""
    broken = {**ROUTE, "name": "broken", "usable": False, "problems": ["'spec' has no such field"]}
    failing = {**ROUTE, "name": "failing", "pods": {"matched": 2, "applied": 1, "skipped": 0, "failed": 1}}
    told = {**ROUTE, "told": ["low-latency: no such Service", "low-latency: no ClusterIP"]}
    many = {**ROUTE, "name": "many", "problems": [f"spec.route[{number}]" for number in range(9)]}
    says(monkeypatch, {**TOLD, "routes": [broken, failing, told, many], "pods": []})
    lines = cells(run("routes", "list"))[1:]
    assert [(line[0], line[1], line[-1]) for line in lines if len(line) > 2] == [
        ("broken", "unusable", "'spec' has no such field"),
        ("failing", "in part", "1"),
        ("low-latency", "in part", "no such Service"),
        ("many", "in part", "spec.route[0]"),
    ]
    assert [line for line in lines if len(line) == 2] == [
        ["low-latency", "no ClusterIP"],
        *(["many", f"spec.route[{number}]"] for number in range(1, 5)),
        ["many", "and 4 more: --json has them"],
    ]


def test_many_pods_are_a_line_each(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many routes each has, those that failed first, with a reason; one that no Route concerns is left out."""
    wanted = [{"dst": f"10.{n}.0.0/16", "dev": "eth1", "via": "", "route": "low-latency", "why": "on-link"} for n in range(10)]
    good = {**POD, "wanted": wanted, "skipped": [], "refused": [], "conflicts": []}
    pods: list[dict[str, Any]] = [{**good, "name": f"web-{number}"} for number in range(108)]
    pods += [{**good, "name": "none", "routes": [], "wanted": []}, {**good, "name": "host", "host_network": True}]
    pods.append({**good, "name": "less", "state": "skipped", "wanted": [], "skipped": ["low-latency: no device eth1"] * 3})
    refused = [f"10.2{n}.0.0/16 dev eth1: Invalid" for n in (3, 4)]
    others = [{**each, "dst": f"10.2{n}.0.0/16"} for n, each in enumerate(wanted)]
    pods.append({**good, "name": "worse", "state": "failed", "refused": refused, "wanted": others})
    told = {**TOLD, "pods": pods, "problems": {}, "unreadable": 0}
    says(monkeypatch, told, {f"10.2{n}.0.0/16": ("missing", "") for n in (3, 4)})
    result = run("routes", "list")
    lines = cells(result)[2:]
    assert lines[:2] == [
        ["POD", "STATE", "ROUTES", "DETAILS"],
        ["default/worse", "failed", "8 there, 2 refused", "10.23.0.0/16 dev eth1: Invalid (and 1 more)"],
    ]
    assert lines[2] == ["default/web-0", "applied", "10 there"]
    assert lines[-2:] == [
        ["default/host", "left alone", "it has the node's own network"],
        ["default/less", "skipped", "3 skipped", "no device eth1 (and 2 more)"],
    ]
    assert (len(lines), result.stderr) == (112, "--pod NAMESPACE/NAME lists each route of a pod, --all of all\n")
    assert len(cells(run("routes", "list", "--all"))) == 3 + 1090 + 1 + 3


def test_a_route_that_the_kernel_keeps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that no Route asks for any more, and that cannot be removed, is shown whole and without a Route."""
    says(monkeypatch, {**TOLD, "pods": [{**POD, "wanted": [], "skipped": [], "conflicts": []}]})
    [line] = [each for each in cells(run("routes", "list", "--all")) if each[1] == "refused"]
    assert line[2:] == ["10.9.0.0/16 dev eth1: Invalid argument (by the kernel)"]


def test_a_pod_without_a_namespace_to_look_into(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its routes are shown as wanted, and not as present; the node's own network is not looked at."""
    host = {**POD, "name": "host", "host_network": True}
    says(monkeypatch, {**TOLD, "pods": [{**POD, "problem": "it is gone"}, host]})
    states = [line[1] for line in cells(run("routes", "list", "--all"))[3:]]
    assert states == ["failed", "wanted", "refused", "skipped", "conflict", "left alone"]


@pytest.mark.parametrize(
    ("error", "routes", "code"),
    [
        (RoutesOff("off"), True, 2),
        (NoAgent("no such socket"), True, 3),
        (NoAgent("no such socket"), False, 2),
        (DeadAgent("no process"), True, 3),
        (Unavailable("no answer within 2 s"), True, 3),
    ],
)
def test_no_answer(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, *, routes: bool, code: int) -> None:
    """With routes off the exit code is 2; without an agent's answer it is 3."""
    says(monkeypatch, error)
    result = run("routes", "list", routes=routes)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("Error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--pod", "/web-0"),
        ("list", "--pod", "a/b/c"),
        ("explain", "default/", "10.0.0.1"),
        ("explain", "default/web-0", "ten"),
        ("explain", "default/web-0", "10.0.0.0/33"),
        ("explain", "default/web-0", "10.0.0.1/8"),
        ("explain", "default/web-0"),
        ("flush", "--json"),
        ("flush", "--pod", "/"),
        ("explain", "default/web-0", "fe80::1%eth1"),
    ],
)
def test_arguments_that_are_wrong(run: Run, arguments: tuple[str, ...]) -> None:
    """They are refused before anything is asked."""
    assert run("routes", *arguments).exit_code == 2


@pytest.mark.parametrize("arguments", [("check",), ("explain", "default/web-0", "10.0.0.1")])
def test_looking_where_routes_are_off(run: Run, arguments: tuple[str, ...]) -> None:
    """Then the desired routes are not compared with pods."""
    result = run("routes", *arguments, routes=False)
    assert (result.exit_code, "the setting routes" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments", [("routes", "check"), ("routes", "explain", "a/b", "::1"), ("routes", "flush"), ("enter", "a/b")]
)
def test_only_root_looks_into_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Another user is refused at once, with exit code 3."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.access", lambda *_: False)
    state = str(tmp_path)
    with closing(Site(Settings(state_dir=state, run_dir=state, short_dir=state, routes=True), environ={})) as site:
        result = CliRunner().invoke(userspace_cni, arguments, obj=site)
    assert (result.exit_code, "run this as root" in result.stderr) == (3, True)


def test_the_agent_s_answers(tmp_path: Path) -> None:
    """The page is used as it is; "routes are off" is distinguished from other failures; an invalid page is refused."""
    with answering(tmp_path / "a", told(200, TOLD)):
        assert AgentClient(str(tmp_path / "a")).routes(look=True) == TOLD
    off = {"code": 11, "msg": "routes in pods are off", "details": "the setting"}
    with answering(tmp_path / "b", told(503, off)), pytest.raises(RoutesOff):
        AgentClient(str(tmp_path / "b")).routes()
    for number, answer in enumerate([told(503, {"msg": "later"}), told(200, {"routes": []}), told(200, [])]):
        with answering(tmp_path / str(number), answer), pytest.raises(Unavailable) as caught:
            AgentClient(str(tmp_path / str(number))).routes()
        assert not isinstance(caught.value, RoutesOff)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[{]", "it is not YAML"),
        ('[{"route": "10.0.0.0/8", "dev": "eth1"}, {"kind": "Route"}]', "two files"),
        ("", "there is nothing in it"),
        ("---\n# none\n", "there is nothing in it"),
        ("{kind: Route, apiVersion: k8s.ovn.org/v1, metadata: {name: a, annotations: {x: .inf}}, spec: {}}", "none of JSON's"),
    ],
)
def test_a_file_that_is_none_of_routes(run: Run, given: str, said: str) -> None:
    """It is refused with the place in it, as a failure; a file that cannot be opened is wrong usage."""
    result = run("routes", "apply", "-f", "-", given=given)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert run("routes", "apply", "-f", "/no/such/file").exit_code == 2
    result = run("routes", "apply", "-f", "/")
    assert (result.exit_code, "/ is a directory" in result.stderr) == (2, True)


def test_where_a_text_is_no_yaml(run: Run) -> None:
    """The place is given as line and column, without the parser's name for the text."""
    result = run("routes", "apply", "-f", "-", given="- route: 10.0.0.0/8\n- dev: eth1: x\n")
    assert "stdin: it is not YAML: line 2, column 12: mapping values are not allowed" in result.stderr
    assert "unicode string" not in result.stderr


SHORT = """\
# the second network
- route: 10.0.0.0/8
  dev: eth1

- route: 10.0.0.1/8
  dev: eth1
- {svc: nginx, dev: eth1}
"""
DOCUMENTS = """\
---
# by hand
apiVersion: k8s.ovn.org/v1
kind: Route
metadata: {name: one}
spec:
  route:
    - {dst: 10.0.0.0/8, dev: eth1}
    - dst: 10.1.0.0/16
      dev: lo
---
---
apiVersion: v1
kind: Pod
metadata: {name: two}
---
apiVersion: v1
kind: List
items:
  - {apiVersion: k8s.ovn.org/v1, kind: Route, metadata: {name: three}}
  - apiVersion: k8s.ovn.org/v1
    kind: Route
    metadata: {name: four}
    spec:
      pods: [{}]
  - {apiVersion: k8s.ovn.org/v1, kind: Route, metadata: {name: three}}
"""


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (SHORT, [(5, "entry 2: 'route' is '10.0.0.1/8'"), (7, "entry 3: 'svc' is 'nginx'")]),
        (f"routes:\n{SHORT}", [(6, "entry 2: 'route'"), (8, "entry 3: 'svc'")]),
        ('[\n\t{"route": "10.0.0.0/8",\n\t"dev": "lo"}\n]', [(2, "entry 1: 'dev' is 'lo'")]),
        ("{route: 10.0.0.0/8}", [(1, "entry 1: 'dev' is None")]),
        ('"a": [7]\n', [(1, "entry 1 is 7")]),
        (
            DOCUMENTS,
            [
                (9, "Route 'one': spec.route[1]: 'dev' is 'lo'"),
                (13, "object number 2 is 'Pod' of 'v1'"),
                (25, "Route 'four': 'spec.pods[0]' is empty"),
                (26, "Route 'three' is in it twice: objects number 3 and 5"),
            ],
        ),
    ],
)
def test_each_fault_of_a_file_has_its_line(run: Run, tmp_path: Path, given: str, lines: list[tuple[int, str]]) -> None:
    """All faults are reported at once, each with the line of entry, object or field, in the form that editors can follow."""
    path = tmp_path / "routes.yaml"
    path.write_text(given)
    result = run("routes", "apply", "-f", str(path), "--dry-run")
    assert result.exit_code == 1
    for line, (number, said) in zip(result.stdout.splitlines(), lines, strict=True):
        assert line.startswith(f"{path}:{number}: {said}")
    assert "nothing was applied" in result.stderr
    found = json.loads(run("routes", "apply", "-f", str(path), "--json").stdout)
    assert [each["line"] for each in found["faults"]] == [number for number, _ in lines]
    assert (found["routes"], found["more_faults"]) == ([], 0)


def test_many_faults_are_counted(run: Run) -> None:
    """The first twenty are named, with the number of the others."""
    result = run("routes", "apply", "-f", "-", given="- {route: x, dev: eth1}\n" * 33)
    lines = result.stdout.splitlines()
    assert (len(lines), lines[-1], "33 faults" in result.stderr) == (21, "stdin: 13 more", True)
    assert lines[19].startswith("stdin:20: entry 20: ")

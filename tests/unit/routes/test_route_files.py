"""Files with routes: the original form, Route objects, and refusals that name file and entry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.routes.building import thing
from userspace_cni.base.errors import InvalidConfig
from userspace_cni.routes.route_files import BYTES_MAX, FAULTS_MAX, faults_in, objects_in, parse, route_name, routes_in

ENTRIES: list[dict[str, Any]] = [
    {"svc": "default/nginx", "dev": "eth1"},
    {"route": "172.16.0.0/16 ", "dev": "eth1"},
    {"route": "10.124.0.0/16", "dev": "eth1", "via": "10.124.2.1"},
]
YAML = """
- svc: default/nginx
  dev: eth1
- {route: "172.16.0.0/16 ", dev: eth1}
- {route: 10.124.0.0/16, dev: eth1, via: 10.124.2.1}
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (json.dumps(ENTRIES), "/etc/cr-config.json"),
        (YAML, "/etc/cr-config.yaml"),
        (json.dumps({"config": ENTRIES}), "cr-config.json"),
        (f"routes:{YAML}", "cr-config.yml"),
    ],
)
def test_the_original_form(text: str, name: str) -> None:
    """A list of entries, alone or under one key, as JSON or YAML, is one Route named after the file."""
    [found] = routes_in(parse(text, name), name)
    assert (found.name, found.problems, found.selection.is_empty) == ("cr-config", (), True)
    assert [str(each.dst) for each in found.networks] == ["172.16.0.0/16", "10.124.0.0/16"]
    assert [(each.namespace, each.name) for each in found.services] == [("default", "nginx")]


@pytest.mark.parametrize("entry", ENTRIES)
def test_one_entry_alone(entry: Any) -> None:
    """A file may hold a single entry without a list."""
    [found] = routes_in(entry, "one.json")
    assert len(found.networks) + len(found.services) == 1


def test_an_object_for_the_api() -> None:
    """The original form becomes an object that the API server accepts, without the blank."""
    [found] = objects_in(ENTRIES, "/etc/Low Latency.yaml")
    assert found == {
        "apiVersion": "k8s.ovn.org/v1",
        "kind": "Route",
        "metadata": {"name": "low-latency"},
        "spec": {
            "route": [{"dst": "172.16.0.0/16", "dev": "eth1"}, {"dst": "10.124.0.0/16", "dev": "eth1", "via": "10.124.2.1"}],
            "svc": [{"namespace": "default", "name": "nginx", "dev": "eth1"}],
        },
    }


def test_all_services_in_a_file() -> None:
    """The entry `*/*` is read like any other."""
    [found] = routes_in([{"svc": "*/*", "dev": "eth1"}, {"svc": "shop/*", "dev": "eth1"}], "cr-config.json")
    assert [(each.namespace, each.name) for each in found.services] == [("*", "*"), ("shop", "*")]


@pytest.mark.parametrize(
    ("path", "name"), [("a/B_c.json", "b-c"), ("网.yaml", "file"), ("x" * 99 + ".yaml", "x" * 63), ("-.json", "file")]
)
def test_the_name_of_a_files_route(path: str, name: str) -> None:
    """The Route's name is the part of the file's name that the API accepts."""
    assert route_name(path) == name


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"svc": "/", "dev": "网卡名"}, "'svc' is '/'"),
        ({"svc": "/", "dev": "eth1"}, "*/* for all"),
        ({"svc": "*/nginx", "dev": "eth1"}, "with all namespaces goes the name '*' alone"),
        ({"svc": "*", "dev": "eth1"}, "'svc' is '*'"),
        ({"svc": "nginx", "dev": "eth1"}, "NAMESPACE/NAME"),
        ({"svc": "a/b/c", "dev": "eth1"}, "'svc' is 'a/b/c'"),
        ({"svc": 7, "dev": "eth1"}, "'svc' is 7"),
        ({"svc": "default/nginx", "dev": "lo"}, "'dev' is 'lo'"),
        ({"route": "10.0.0.1/8", "dev": "eth1"}, "'10.0.0.1/8'"),
        ({"route": 10, "dev": "eth1"}, "'route' is 10"),
        ({"route": "10.0.0.0/8"}, "'dev' is None"),
        ({"route": "10.0.0.0/8", "svc": "a/b", "dev": "eth1"}, "one of 'svc' and 'route'"),
        ({"dev": "eth1"}, "one of 'svc' and 'route'"),
        ({"route": "10.0.0.0/8", "dev": "eth1", "gw": "10.0.0.1"}, "unknown field 'gw'"),
        ("10.0.0.0/8", "must be an object"),
        (None, "must be an object"),
    ],
)
def test_an_entry_that_cannot_be_refuses_the_file(entry: Any, why: str) -> None:
    """The error names the file and the entry's number. The placeholders of the original's example are no values."""
    with pytest.raises(InvalidConfig, match=r"cr-config\.json: entry 2") as refused:
        routes_in([ENTRIES[1], entry], "cr-config.json")
    assert why in str(refused.value)


def test_all_that_is_wrong_is_named() -> None:
    """Each wrong entry is named by its number, up to twenty.

    The error of reading the file has the first one, and their number.
    """
    wrong = {"route": "10.0.0.1/8", "dev": "eth1"}
    faults = faults_in([wrong, *ENTRIES, {"svc": "a", "dev": "eth1"}], "f.yaml")
    assert [(each.number, str(each).partition(":")[0]) for each in faults.first] == [(1, "entry 1"), (5, "entry 5")]
    with pytest.raises(InvalidConfig, match=r"^f\.yaml: entry 1: 'route' is '10\.0\.0\.1/8'.*2 faults are in it"):
        objects_in([wrong, *ENTRIES, {"svc": "a", "dev": "eth1"}], "f.yaml")
    faults = faults_in([wrong] * 50, "f.yaml")
    assert (len(faults.first), faults.count, faults.more) == (FAULTS_MAX, 50, 50 - FAULTS_MAX)
    assert faults_in(ENTRIES, "f.yaml").count == 0


def test_all_that_is_wrong_in_objects() -> None:
    """Named are objects of other kinds, repeated names and the problems of each Route, in the order of the file."""
    bad = thing(
        "a", route=[{"dst": "10.0.0.0/8", "dev": "lo"}, {"dst": "10.0.0.0/8", "dev": "eth1"}, {"dst": "x", "dev": "eth1"}]
    )
    faults = faults_in([bad, {**thing("b"), "kind": "Pod"}, thing("c"), thing("a", priority=-1), {**thing(), "metadata": 7}], "f")
    assert [(each.number, str(each).partition("; ")[0]) for each in faults.first] == [
        (1, "Route 'a': spec.route[0]: 'dev' is 'lo'"),
        (1, "Route 'a': spec.route[2]: 'dst' is 'x'"),
        (2, "object number 2 is 'Pod' of 'k8s.ovn.org/v1'"),
        (4, "Route 'a' is in it twice: objects number 1 and 4"),
        (4, "Route 'a': 'spec.priority' is -1"),
        (5, "object number 5: 'metadata.name' is None"),
    ]


def test_route_objects() -> None:
    """One object, a list, a List and several documents are read. Each Route has only its own problems."""
    one, other = thing("a", route=[{"dst": "10.0.0.0/8", "dev": "eth1"}]), thing("b", route=[{"dst": "10.0.0.0/8", "dev": "lo"}])
    both = [one, other]
    documents = "\n---\n".join(json.dumps(each) for each in both)
    for data in (both, {"kind": "List", "apiVersion": "v1", "items": both}, {"kind": "RouteList", "items": both}):
        assert [each.name for each in routes_in(data, "f")] == ["a", "b"]
    assert [each.name for each in routes_in(parse(f"---\n{documents}\n---\n", "f.yaml"), "f.yaml")] == ["a", "b"]
    assert [each.name for each in routes_in(one, "f")] == ["a"]
    assert [len(each.problems) for each in routes_in(both, "f")] == [0, 1]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([thing("a"), thing("a")], "is in it twice"),
        ([thing("a"), ENTRIES[0]], "objects and entries"),
        ([thing("a"), {**thing("b"), "kind": "Pod"}], "object number 2 is 'Pod'"),
        ({**thing("a"), "apiVersion": "v1"}, "'v1'"),
        ("text", "it holds 'text'"),
        (None, "it holds None"),
        ({}, "it holds {}"),
        ({"a": [], "b": []}, "it holds"),
        ([ENTRIES[1]] * 1025, "1025 entries"),
    ],
)
def test_what_is_neither_form(data: Any, why: str) -> None:
    """A file in neither form is refused as a whole, with its name."""
    with pytest.raises(InvalidConfig, match=r"^f: ") as refused:
        routes_in(data, "f")
    assert why in str(refused.value)


def test_an_empty_list() -> None:
    """A file with an empty list asks for no routes, and its Route says so."""
    [found] = routes_in([], "f.yaml")
    assert (found.name, found.networks, found.services, found.problems) == ("f", (), (), ())


def bomb(levels: int) -> str:
    """YAML in which each of nine levels makes the values nine times as many."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (bomb(9), "more than 100000 values"),
        ("&a [*a]", "what it is in"),
        ("- *b", "refers to nothing"),
        ("[" * 60 + "]" * 60, "nested deeper"),
        ("{a: 1, a: 2}", "'a' is given twice"),
        ("- {route: 10.0.0.0/8, dev: eth1, dev: eth2}", "'dev' is given twice"),
        ("!!python/object/apply:os.system [id]", "not YAML"),
        ("a: [", "not YAML"),
        ("a: \x00", "not YAML"),
        (f"a: 0x{'f' * 100_000}\nb: {'9' * 5000}", "not YAML"),
        (" " * (BYTES_MAX + 1), "more than 1 MiB"),
        ("é" * (BYTES_MAX // 2 + 1), "more than 1 MiB"),
    ],
)
def test_texts_that_are_not_read(text: str, why: str) -> None:
    """Refused are bombs of aliases, endless and deep texts, repeated keys, tags of Python, and files of more than 1 MiB."""
    with pytest.raises(InvalidConfig, match=r"^f\.yaml: ") as refused:
        parse(text, "f.yaml")
    assert why in str(refused.value)


def test_json_that_is_none() -> None:
    """A file named as JSON is read as JSON and has JSON's errors. NaN and repeated keys are refused."""
    for text in ('{"a": 1,}', '{"a": NaN}', '[{"a": 1, "a": 2}]'):
        with pytest.raises(InvalidConfig, match="it is not JSON"):
            parse(text, "f.json")


def test_what_yaml_may_do() -> None:
    """Small aliases, merge keys and comments are read. A time stays a text, as in JSON."""
    text = "- &a {route: 10.0.0.0/8, dev: eth1}   # all\n- {<<: *a, route: 11.0.0.0/8}\n- *a\n"
    assert [each["route"] for each in parse(text, "f")] == ["10.0.0.0/8", "11.0.0.0/8", "10.0.0.0/8"]
    assert parse("created: 2026-01-01T00:00:00Z", "f") == {"created": "2026-01-01T00:00:00Z"}
    assert parse("", "f") == []

"""The texts in a pod's annotations: how they are written, and how they are read."""

from __future__ import annotations

import ast
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.pod import document
from userspace_cni.pod.document import DocumentError

ROOT = Path(__file__).resolve().parents[3]
CONTAINER = "390cedb3dbd819176bd3acb00e8b1e0d008be22797539fd5bfda8b72880b4830"

GOLDEN = """[{
    "containerId": "390cedb3dbd819176bd3acb00e8b1e0d008be22797539fd5bfda8b72880b4830",
    "ifName": "net1",
    "name": "dpdk-plain",
    "config": {
        "engine": "ovs-dpdk",
        "iftype": "vhostuser",
        "netType": "interface",
        "memif": {},
        "vhost": {
            "mode": "server",
            "socketfile": "390cedb3dbd8-net1",
            "queues": 2
        },
        "bridge": {}
    },
    "ipResult": {
        "cniVersion": "1.1.0",
        "interfaces": [
            {
                "name": "net1",
                "mac": "02:00:00:aa:bb:01",
                "mtu": 9000,
                "sandbox": "/var/run/netns/cni-1"
            }
        ],
        "ips": [
            {
                "version": "4",
                "interface": 0,
                "address": "10.56.217.40/24",
                "gateway": "10.56.217.1"
            },
            {
                "version": "6",
                "interface": 0,
                "address": "fd00::40/64"
            }
        ],
        "routes": [
            {
                "dst": "0.0.0.0/0"
            }
        ]
    }
}]"""


def entry(ifname: str = "net1", container: str = CONTAINER, **vhost: Any) -> document.Entry:
    """An entry as the planner makes them."""
    config = {
        "netType": "interface",
        "vhost": {"socketfile": f"{container[:12]}-{ifname}", "mode": "server", **vhost},
        "iftype": "vhostuser",
        "engine": "ovs-dpdk",
    }
    ips = [
        {"address": "10.56.217.40/24", "gateway": "10.56.217.1", "interface": 0},
        {"address": "fd00::40/64", "interface": 0},
    ]
    link = {"name": ifname, "mac": "02:00:00:aa:bb:01", "mtu": 9000, "sandbox": "/var/run/netns/cni-1"}
    result = {"cniVersion": "1.1.0", "interfaces": [link], "ips": ips, "routes": [{"dst": "0.0.0.0/0"}]}
    return document.build_entry(container, ifname, "dpdk-plain", config, result)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
entries = st.builds(
    lambda container, ifname, rest: {"containerId": container, "ifName": ifname, **rest},
    st.text(min_size=1),
    st.text(min_size=1),
    st.dictionaries(st.text().filter(lambda key: key not in ("containerId", "ifName")), json_values, max_size=4),
)


def test_configuration_data_is_upstreams_text_byte_for_byte() -> None:
    """Key order, indentation, list brackets and the kept IP version are exactly what applications were written against."""
    assert document.render([entry(queues=2)]) == GOLDEN


def test_several_entries_are_joined_as_upstream_did() -> None:
    """The second object follows the first after a bare comma."""
    text = document.render([entry("net1"), entry("net2")])
    assert '\n},{\n    "containerId"' in text
    assert [one["ifName"] for one in document.parse(text)] == ["net1", "net2"]


def test_what_upstream_wrote_is_read() -> None:
    """An annotation of the plugin that is replaced parses into its entries."""
    text = (
        '[{\n    "containerId": "037ecb6703b0",\n    "ifName": "net1",\n    "name": "n",\n    "config": {\n        "engine": '
        '"ovs-dpdk",\n        "memif": {},\n        "vhost": {},\n        "bridge": {}\n    },\n    "ipResult": {"dns": {}}\n},'
        '{\n    "containerId": "037ecb6703b0",\n    "ifName": "net1"\n}]'
    )
    assert [one["containerId"] for one in document.parse(text)] == ["037ecb6703b0"] * 2


def test_empty_scalars_are_left_out_and_blocks_are_not() -> None:
    """An engine that was not configured has no key; memif, vhost and bridge are there even when empty."""
    config = document.build_entry("c", "net1", "n", {"engine": "", "netType": None}, {})["config"]
    assert config == {"memif": {}, "vhost": {}, "bridge": {}}


def test_containerid_stays_the_first_key() -> None:
    """However an entry's keys are ordered, the text starts with containerId, which scripts grep."""
    assert document.render_file({"ifName": "net1", "containerId": "c"}) == '{"containerId": "c", "ifName": "net1"}'


def test_no_text_has_an_equals_sign_or_a_quote_that_needs_a_backslash() -> None:
    """Values with =, quotes and backslashes are written with escapes that survive readers who delete backslashes."""
    text = document.render([{"containerId": "c", "ifName": "net1", "name": 'a=b "c" \\d'}])
    assert "=" not in text
    assert '\\"' not in text
    assert json.loads(text)[0]["name"] == 'a=b "c" \\d'
    assert json.loads(text.replace("\\", ""))[0]["ifName"] == "net1"


@given(st.lists(entries, max_size=4))
def test_what_is_rendered_parses_to_the_same(some: list[document.Entry]) -> None:
    """parse(render(x)) is x for any entries."""
    text = document.render(some)
    assert document.parse(text) == some
    assert "=" not in text
    assert document.render(document.parse(text)) == text


@given(st.text() | json_values.map(json.dumps))
def test_any_text_parses_or_is_refused_as_a_document_error(text: str) -> None:
    """The parser raises nothing but its own error."""
    with suppress(DocumentError):
        document.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("7", "not a list"),
        ("[1]", "entry 0"),
        ('[{"containerId": "c", "ifName": "net1"}, {"ifName": "net2"}]', "entry 1 of the configuration data has no containerId"),
        ('[{"containerId": "c", "ifName": ""}]', "no ifName"),
        ("[" * 100_000, "nested"),
        ('[{"containerId": "c", "ifName": "n", "x": NaN}]', "NaN"),
        ('[{"containerId": "c", "ifName": "n", "x": 1e999}]', "1e999"),
        ('[{"containerId": "c", "ifName": "n", "x": ' + "9" * 5000 + "}]", "not JSON"),
    ],
)
def test_a_broken_text_is_refused_in_words(text: str, words: str) -> None:
    """The error says which entry is wrong, and in what."""
    with pytest.raises(DocumentError, match=words):
        document.parse(text)


def test_an_entry_is_replaced_by_interface_name_in_its_place() -> None:
    """A new sandbox's entry takes the place of the old one's, so that the first entry never stays a stale one."""
    old = [entry("net1", "a" * 64), entry("net2", "a" * 64), entry("net1", "b" * 64)]
    new = entry("net1", "c" * 64)
    assert [(one["ifName"], one["containerId"][0]) for one in document.replace_entry(old, new)] == [("net1", "c"), ("net2", "a")]
    assert document.replace_entry([], new) == [new]


def test_an_entry_is_removed_by_container_and_interface() -> None:
    """A late DEL of the former sandbox leaves the entry of the new one alone."""
    new = entry("net1", "b" * 64)
    assert document.remove_entry([new], "a" * 64, "net1") == [new]
    assert document.remove_entry([new], "b" * 64, "net1") == []


@pytest.mark.parametrize(
    ("path", "value"), [("/a/b", "/a/b/"), ("/a//b/", "/a/b/"), ("/", "/"), ("//a", "/a/"), ("/a/../b/.", "/b/")]
)
def test_mapped_dir_is_clean_and_ends_in_a_slash(path: str, value: str) -> None:
    """app-netutil joins it with the socket's name without a separator."""
    assert document.mapped_dir_value(path) == value
    assert document.same_directory(path, value)


@pytest.mark.parametrize("path", ["", "a/b", "/a b", "/a=b", '/a"b', "/a\\b", "/a\nb"])
def test_a_directory_that_readers_would_misread_is_refused(path: str) -> None:
    """A relative mapped-dir, or one with a blank, '=', quote or backslash, is an error and never written."""
    with pytest.raises(DocumentError):
        document.mapped_dir_value(path)


def test_a_downward_api_file_is_unquoted_as_go_quoted_it() -> None:
    """Go's escapes are undone, in every form that strconv.Quote writes."""
    text = 'a/b="x\\n\\t\\"\\\\\\u00e9\\U0001f600\\x7f=\u00fc"\nempty=""\nuserspace/mapped-dir="/x/"\n'
    assert document.parse_annotations(text) == {
        "a/b": 'x\n\t"\\\u00e9\U0001f600\x7f=\u00fc',
        "empty": "",
        "userspace/mapped-dir": "/x/",
    }


def test_bytes_that_are_no_text_survive_as_escapes_of_their_own() -> None:
    """A \\x escape stands for a byte outside UTF-8 and does not become another character."""
    value = document.parse_annotations('a="\\xff"')["a"]
    assert value.encode("utf-8", "surrogateescape") == b"\xff"


def test_a_strange_line_is_skipped_unless_it_is_ours() -> None:
    """Other programs' lines are skipped; a damaged line of ours is an error, not an absence."""
    assert document.parse_annotations('what is this\na="b"\n') == {"a": "b"}
    with pytest.raises(DocumentError, match="line 2"):
        document.parse_annotations('a="b"\nuserspace/mapped-dir="/x')


@given(st.text())
def test_any_file_parses_or_is_refused_as_a_document_error(text: str) -> None:
    """Any annotations file is parsed, or raises the parser's own error."""
    with suppress(DocumentError):
        document.parse_annotations(text)


def test_the_package_uses_the_standard_library_only_and_old_syntax() -> None:
    """Every module parses as Python 3.9 and imports absolute names from the standard library only."""
    for path in (ROOT / "userspace_cni" / "pod").glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names, path

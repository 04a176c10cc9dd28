"""Results and errors are what each version of the specification, and libcni's decoder of it, expects."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.errors import DelegateBroken, DelegateFailed, InvalidConfig, Undecodable, UserspaceError
from userspace_cni.cni.result import (
    EMPTY,
    LATEST,
    SUPPORTED_VERSIONS,
    ResultAddresses,
    ResultInterface,
    build,
    encode,
    error_json,
    find_interface,
    read_addresses,
    read_prev_result,
    safe_for_del,
    version_answer,
)

OLD = ("0.3.0", "0.3.1", "0.4.0")
MODERN = ("1.0.0", "1.1.0")
NETNS = "/var/run/netns/cni-1"
OURS = ResultInterface("net1", NETNS, "02:AA:bb:CC:00:01", 1500, "/var/lib/vhost_sockets/u/s.sock")
LEASED = ResultAddresses(
    ips=({"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}),
    routes=({"dst": "0.0.0.0/0", "gw": "10.1.0.1"},),
    dns={"nameservers": ["10.1.0.1"]},
)
BEFORE = {
    "cniVersion": "1.1.0",
    "interfaces": [
        {"name": "br0", "mac": "02:00:00:00:00:aa", "mtu": 9000},
        {"name": "eth0", "sandbox": NETNS, "socketPath": "/run/x.sock", "pciID": "0000:00:01.0"},
    ],
    "ips": [{"address": "192.168.0.2/24", "interface": 1}, {"address": "fd01::2/64", "gateway": "fd01::1", "interface": 1}],
    "routes": [{"dst": "::/0", "gw": "fd01::1", "mtu": 1400, "table": 0}],
    "dns": {"search": ["example.org"]},
}


def prev(**changes: Any) -> dict[str, Any]:
    """BEFORE with `changes`, as libcni hands it over, in the internal form."""
    return read_prev_result(BEFORE | changes, "1.0.0")


class TestBuild:
    """ADD's answer."""

    @pytest.mark.parametrize("version", MODERN)
    def test_a_modern_result(self, version: str) -> None:
        """From 1.0.0 on the entry has mtu and socketPath, addresses have no version, and dns is there unless it is empty."""
        assert build(version, [OURS], LEASED) == {
            "cniVersion": version,
            "interfaces": [
                {
                    "name": "net1",
                    "mac": "02:aa:bb:cc:00:01",
                    "mtu": 1500,
                    "sandbox": NETNS,
                    "socketPath": "/var/lib/vhost_sockets/u/s.sock",
                }
            ],
            "ips": [
                {"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 0},
                {"address": "fd00::5/64", "interface": 0},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}],
            "dns": {"nameservers": ["10.1.0.1"]},
        }

    @pytest.mark.parametrize("version", OLD)
    def test_an_old_result(self, version: str) -> None:
        """Up to 0.4.0 addresses name their family and the interface has only name, mac and sandbox."""
        result = build(version, [OURS], LEASED)
        assert result["cniVersion"] == version
        assert result["interfaces"] == [{"name": "net1", "mac": "02:aa:bb:cc:00:01", "sandbox": NETNS}]
        assert [ip["version"] for ip in result["ips"]] == ["4", "6"]

    def test_a_layer_two_port(self) -> None:
        """Without addresses there is only the interface, and the empty dns that old versions print."""
        assert set(build("1.1.0", [OURS], EMPTY)) == {"cniVersion", "interfaces"}
        assert build("0.4.0", [OURS])["dns"] == {}
        assert build("1.0.0", [ResultInterface("net1", NETNS, "02:00:00:00:00:01")])["interfaces"] == [
            {"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": NETNS}
        ]

    @pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
    def test_the_previous_result_stays(self, version: str) -> None:
        """All of prevResult is in the answer, in its order and with its indices; ours comes after it, with its own index."""
        before, after = prev(), build(version, [OURS], LEASED, None, prev())
        expected = build(version, [OURS], EMPTY, None, before)
        assert [entry["name"] for entry in after["interfaces"]] == ["br0", "eth0", "net1"]
        assert after["ips"][:2] == expected["ips"]
        assert [ip["interface"] for ip in after["ips"]] == [1, 1, 2, 2]
        assert after["routes"] == [*BEFORE["routes"], *LEASED.routes]
        assert after["dns"] == BEFORE["dns"]
        assert before == prev()

    def test_the_previous_result_in_its_own_version_is_untouched(self) -> None:
        """What came in at the asked version goes out as it was."""
        after = build("1.1.0", [OURS], EMPTY, None, prev())
        assert after["interfaces"][:2] == BEFORE["interfaces"]
        assert {key: after[key] for key in ("ips", "routes", "dns")} == {key: BEFORE[key] for key in ("ips", "routes", "dns")}

    def test_the_previous_result_in_an_older_version(self) -> None:
        """prevResult of 1.1.0 loses in 0.4.0 what that version does not know, and gains the families."""
        after = build("0.4.0", [OURS], EMPTY, None, prev())
        assert after["interfaces"][0] == {"name": "br0", "mac": "02:00:00:00:00:aa"}
        assert after["interfaces"][1] == {"name": "eth0", "sandbox": NETNS}
        assert after["ips"][0] == {"version": "4", "address": "192.168.0.2/24", "interface": 1}

    def test_an_old_previous_result_in_a_newer_version(self) -> None:
        """prevResult of 0.3.1 loses the families in 1.0.0."""
        old = {"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.0.0.1/8"}], "dns": {}}
        assert build("1.0.0", [OURS], EMPTY, None, read_prev_result(old, "1.0.0"))["ips"] == [{"address": "10.0.0.1/8"}]

    def test_whose_dns(self) -> None:
        """The configuration's dns takes precedence over the previous plugin's, and that over the delegate's.

        An empty one does not count.
        """
        own = {"domain": "own.example", "search": []}
        assert build("1.0.0", [OURS], LEASED, own, prev())["dns"] == {"domain": "own.example"}
        assert build("1.0.0", [OURS], LEASED, own)["dns"] == {"domain": "own.example"}
        assert build("1.0.0", [OURS], LEASED, {"nameservers": []}, prev())["dns"] == BEFORE["dns"]
        assert build("1.0.0", [OURS], LEASED, None, prev(dns={}))["dns"] == LEASED.dns

    @given(st.sampled_from(SUPPORTED_VERSIONS), st.sampled_from(SUPPORTED_VERSIONS))
    def test_every_conversion_keeps_what_all_versions_know(self, there: str, back: str) -> None:
        """A result read back from any version and built in any other has the same names, addresses and routes."""
        first = build(there, [OURS], LEASED)
        again = build(back, [ResultInterface("net2", NETNS, "02:00:00:00:00:02")], EMPTY, None, read_prev_result(first, back))
        assert [entry["name"] for entry in again["interfaces"]] == ["net1", "net2"]
        assert [ip["address"] for ip in again["ips"]] == ["10.1.0.5/24", "fd00::5/64"]
        assert again["routes"] == list(LEASED.routes)
        assert all(("version" in ip) == (back in OLD) for ip in again["ips"])


class TestReadAddresses:
    """A delegate's answer."""

    def test_its_own_version_counts(self) -> None:
        """An answer of 0.4.0 to a config of 1.0.0 is read as what it is; its interfaces and indices are not ours."""
        answer = {
            "cniVersion": "0.4.0",
            "interfaces": "anything",
            "ips": [{"version": "4", "interface": 7, "address": "10.1.0.5/24", "gateway": "10.1.0.1"}],
            "routes": [{"dst": "10.0.0.0/8"}],
            "dns": {"nameservers": ["10.1.0.1"], "domain": ""},
        }
        assert read_addresses(answer, "1.0.0") == ResultAddresses(
            ips=({"address": "10.1.0.5/24", "gateway": "10.1.0.1"},),
            routes=({"dst": "10.0.0.0/8"},),
            dns={"nameservers": ["10.1.0.1"]},
        )

    def test_what_go_prints_for_nothing(self) -> None:
        """Null and absent lists, an empty gateway and surplus keys are no faults."""
        answer: dict[str, Any] = {
            "ips": [{"address": "10.1.0.5/24", "gateway": "", "note": 1}],
            "routes": None,
            "dns": None,
            "more": {},
        }
        assert read_addresses(answer, "0.3.1") == ResultAddresses(ips=({"address": "10.1.0.5/24"},))

    @pytest.mark.parametrize(
        ("answer", "named"),
        [
            ([], "not a JSON object"),
            (None, "not a JSON object"),
            ({}, "ips"),
            ({"ips": []}, "ips"),
            ({"ips": {}}, "ips"),
            ({"ips": ["10.0.0.1/8"]}, r"ips\[0\]"),
            ({"ips": [{"gateway": "10.0.0.1"}]}, r"ips\[0\]\.address"),
            ({"ips": [{"address": "10.0.0.1"}]}, r"ips\[0\]\.address"),
            ({"ips": [{"address": "10.0.0.1/255.0.0.0"}]}, r"ips\[0\]\.address"),
            ({"ips": [{"address": "10.0.0.1/33"}]}, r"ips\[0\]\.address"),
            ({"ips": [{"address": "fe80::1%eth0/64"}]}, r"ips\[0\]\.address"),
            ({"ips": [{"address": 5}]}, r"ips\[0\]\.address"),
            ({"ips": [{"address": "10.0.0.1/8", "gateway": "10.0.0.1/8"}]}, r"ips\[0\]\.gateway"),
            ({"ips": [{"address": "10.0.0.1/8"}], "routes": [{"dst": "default"}]}, r"routes\[0\]\.dst.*'default'"),
            ({"ips": [{"address": "10.0.0.1/8"}], "routes": [{"gw": "10.0.0.1"}]}, r"routes\[0\]\.dst"),
            ({"ips": [{"address": "10.0.0.1/8"}], "routes": [{"dst": "0.0.0.0/0", "gw": "x"}]}, r"routes\[0\]\.gw"),
            ({"ips": [{"address": "10.0.0.1/8"}], "routes": [{"dst": "0.0.0.0/0", "mtu": True}]}, r"routes\[0\]\.mtu"),
            ({"ips": [{"address": "10.0.0.1/8"}], "dns": []}, "dns"),
            ({"ips": [{"address": "10.0.0.1/8"}], "dns": {"nameservers": [1]}}, r"dns\.nameservers"),
            ({"ips": [{"address": "10.0.0.1/8"}], "dns": {"domain": 1}}, r"dns\.domain"),
            ({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.1/8"}}, r"cniVersion.*'0\.2\.0'"),
            ({"cniVersion": "9.9.9", "ips": [{"address": "10.0.0.1/8"}]}, r"cniVersion.*'9\.9\.9'"),
            ({"cniVersion": 1, "ips": [{"address": "10.0.0.1/8"}]}, "cniVersion"),
        ],
    )
    def test_what_is_no_result(self, answer: object, named: str) -> None:
        """A fault in the answer is the delegate's, and the message names the key."""
        with pytest.raises(DelegateBroken, match=named):
            read_addresses(answer, "1.0.0")


class TestPrevResult:
    """The previous plugin's, or the cached, result."""

    def test_find_our_interface(self) -> None:
        """Name and sandbox both count."""
        found = find_interface(prev(), "eth0", NETNS)
        assert found is not None
        assert found["socketPath"] == "/run/x.sock"
        assert find_interface(prev(), "eth0", "/var/run/netns/other") is None
        assert find_interface(prev(), "br0", NETNS) is None

    def test_without_a_version_it_has_the_configs(self) -> None:
        """A missing or empty cniVersion is the config's, whatever that is."""
        raw = {key: value for key, value in BEFORE.items() if key != "cniVersion"}
        assert read_prev_result(raw, "0.4.0") == read_prev_result(raw | {"cniVersion": ""}, "1.0.0") == prev()

    def test_unknown_keys_vanish(self) -> None:
        """As in libcni, what the specification does not name is not handed on."""
        raw = {"private": 1, "interfaces": [{"name": "a", "private": 2}], "dns": {"private": [3]}}
        assert read_prev_result(raw, "1.0.0") == {"interfaces": [{"name": "a"}], "ips": [], "routes": [], "dns": {}}

    @pytest.mark.parametrize(
        ("raw", "kind", "named"),
        [
            ("x", Undecodable, "prevResult: not a JSON object"),
            ({"interfaces": 1}, Undecodable, "prevResult: interfaces: not a list"),
            ({"interfaces": [{"name": 1}]}, Undecodable, r"prevResult: interfaces\[0\]\.name"),
            ({"interfaces": [{"mac": "02:00:00:00:00:01"}]}, InvalidConfig, r"prevResult: interfaces\[0\]\.name: missing"),
            ({"ips": [{"address": "10.0.0.1/8", "interface": "0"}]}, Undecodable, r"prevResult: ips\[0\]\.interface"),
            ({"ips": [{"address": "10.0.0.1"}]}, InvalidConfig, r"prevResult: ips\[0\]\.address"),
            ({"cniVersion": "0.1.0"}, InvalidConfig, "prevResult: cniVersion"),
            ({"cniVersion": []}, Undecodable, "prevResult: cniVersion"),
        ],
    )
    def test_what_is_no_result(self, raw: object, kind: type[UserspaceError], named: str) -> None:
        """A wrong JSON type cannot be decoded (6), a wrong value is invalid (7); the message names the key."""
        with pytest.raises(kind, match=named):
            read_prev_result(raw, "1.0.0")


class TestErrors:
    """The error object."""

    def test_its_keys(self) -> None:
        """Version, code, msg and, when there are any, details."""
        assert json.loads(error_json(InvalidConfig("bad", "look there"), "0.4.0")) == {
            "cniVersion": "0.4.0",
            "code": 7,
            "msg": "bad",
            "details": "look there",
        }
        assert "details" not in json.loads(error_json(InvalidConfig("bad"), "0.4.0"))

    @pytest.mark.parametrize("code", [-1, 2**32, "7", 1.5])
    def test_a_code_that_libcni_can_not_decode_is_never_printed(self, code: Any) -> None:
        """The class's own code replaces an impossible one, because libcni would lose the whole message."""
        assert json.loads(error_json(DelegateFailed("x", code=code), LATEST))["code"] == 100

    @given(st.text(st.characters()), st.text(st.characters()))
    def test_any_text_can_be_printed(self, message: str, details: str) -> None:
        """Whatever the message is made of, surrogates too, stdout is one ASCII line with one JSON object of encodable text."""
        printed = error_json(UserspaceError(message, details), LATEST)
        assert printed.isascii()
        assert printed.endswith(b"}\n")
        assert printed.count(b"\n") == 1
        json.loads(printed)["msg"].encode("utf-8")

    def test_undecodable_bytes_stay_readable(self) -> None:
        """A byte of the environment that is not UTF-8 is escaped."""
        name = b"net\xff".decode("utf-8", "surrogateescape")
        assert json.loads(error_json(UserspaceError(name), LATEST))["msg"] == "net\\udcff"

    @pytest.mark.parametrize(
        "text", ["link Not Found", "stat /x: No such file or directory", "not found: NO SUCH FILE OR DIRECTORY"]
    )
    def test_no_del_error_sounds_like_success(self, text: str) -> None:
        """go-cni and Multus look for these words; in a DEL error they would hide the failure."""
        printed = error_json(UserspaceError(text, text), LATEST, for_del=True).decode().lower()
        assert "not found" not in printed
        assert "no such file or directory" not in printed
        assert "absent" in printed

    @given(
        st.lists(st.sampled_from(["not found", "NOT FOUND", "no such file or directory", "not ", "found", " ", "x"])).map("".join)
    )
    def test_rewording_is_complete(self, text: str) -> None:
        """No combination of the words survives."""
        said = safe_for_del(text).lower()
        assert "not found" not in said
        assert "no such file or directory" not in said


class TestEncoding:
    """What goes to stdout."""

    def test_a_value_that_json_does_not_know(self) -> None:
        """NaN is refused rather than printed."""
        with pytest.raises(ValueError, match="not JSON compliant"):
            encode({"a": float("nan")})

    def test_bytes_of_a_path_come_back(self) -> None:
        """A netns path that is no UTF-8 is printed without failing and comes back the same."""
        path = b"/run/\xff".decode("utf-8", "surrogateescape")
        assert json.loads(encode({"sandbox": path}))["sandbox"] == path

    @pytest.mark.parametrize(
        ("requested", "answered"),
        [("0.4.0", "0.4.0"), ("9.9.9", "9.9.9"), (None, LATEST), ("", LATEST), (1, LATEST), ([], LATEST)],
    )
    def test_version(self, requested: object, answered: str) -> None:
        """VERSION echoes the version it was asked in, when that is one, and lists all of ours."""
        assert json.loads(version_answer(requested)) == {
            "cniVersion": answered,
            "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
        }

    def test_cheap_to_import(self) -> None:
        """The module itself imports neither json nor ipaddress, so that VERSION and errors do not pay for them."""
        code = "import sys, userspace_cni.cni.result; print([m for m in ('json', 'ipaddress', 'subprocess') if m in sys.modules])"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("key", "most", "entry"), [("ips", 64, {"address": "192.0.2.7/24"}), ("routes", 1024, {"dst": "198.51.100.0/24"})]
)
def test_more_than_an_interface_can_have(key: str, most: int, entry: dict[str, str]) -> None:
    """An answer of an IPAM plugin with more addresses or routes is the network's fault: 7. The most that it can be is read."""
    answer: dict[str, Any] = {"ips": [{"address": "192.0.2.7/24"}], key: [entry] * most}
    assert len(getattr(read_addresses(answer, "1.1.0"), key)) == most
    with pytest.raises(InvalidConfig, match=f"gave {most + 1} {key}, an interface can have {most} at most") as refused:
        read_addresses({**answer, key: [entry] * (most + 1)}, "1.1.0")
    assert refused.value.code == 7

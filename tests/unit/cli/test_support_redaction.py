"""What an archive for support may not have: secrets, by their looks, by their names, and those that are known."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.cli.support.known_keys import known_only, known_request, known_text
from userspace_cni.cli.support.own_secrets import learn_environment
from userspace_cni.cli.support.redaction import REDACTED, Redactor
from userspace_cni.node.support_facts import LEFT_OUT

SECRET = "s3cr3t/Wörd+ of one"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nq2w3e4r5t6\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("authorization: basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ('msg="asking https://user:pa55word@registry.example/v2/"', "pa55word"),
        ("postgres://user:p@55/w@rd@host/db", "55/w@rd"),
        ("password=hunter2 port=p1", "hunter2"),
        ('{"db_password": "hunter2"}', "hunter2"),
        ('msg="stdin {\\"apiKey\\": \\"hunter2\\"}"', "hunter2"),
        ("DB_PASS='hunter 2'", "hunter 2"),
        ("client-key-data: TUlJRXBBSUJBQUtDQVFFQTc=", "TUlJRXBBSUJBQUtDQVFFQTc"),
        ("exec: get-token --token abc123 --user web", "abc123"),
        ('args: ["--client-secret", "abc123"]', "abc123"),
        (f"token {JWT} was refused", JWT),
        ("key AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("login: user=web pw=hunter4", "hunter4"),
        ("used glpat-x1y2z3a4b5c6d7e8f9g0", "glpat-x1y2"),
        ("used sk-proj-x1y2z3a4b5c6d7e8", "sk-proj-x1y2"),
        ("blob Zm9vYmFyMTIzNDU2Nzg5MEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFla end", "Zm9vYmFy"),
        (f"before\n{PEM}\nafter", "q2w3e4r5t6"),
        (json.dumps({"data": PEM}), "q2w3e4r5t6"),
        (PEM.partition("-----END")[0], "q2w3e4r5t6"),
    ],
)
def test_what_looks_like_a_secret(text: str, secret: str) -> None:
    """Headers, URLs, pairs, options, keys and tokens lose their secret, and what is beside it stays."""
    cleaned = Redactor().clean(text)
    assert secret not in cleaned
    assert REDACTED in cleaned
    assert text[:3] == cleaned[:3] or text == PEM.partition("-----END")[0]


@pytest.mark.parametrize(
    "text",
    [
        "port c0ffee012345-net1 on bridge br0, container 4f1f2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8",
        "/var/lib/kubelet/pods/7D1a2c00-0000-4000-8000-000000000159/volumes/kubernetes.io~empty-dir/shared-dir/sock",
        "cookie=0x55636e00, duration=1.2s, n_packets=3, priority=9,in_port=1 actions=output:2",
        'userspace_cni_port_rx_packets_total{bridge="br0",namespace="default",pod="web-1"} 17',
        "passages: 3, the key 'host.port' of the network; unix:/var/run/openvswitch/db.sock answers",
    ],
)
def test_what_is_none(text: str) -> None:
    """Names, digests, paths, flows and metrics stay as they are."""
    assert Redactor().clean(text) == text


def test_a_known_secret_in_every_form() -> None:
    """What was learnt is found as it is, as URLs and JSON spell it, in hexadecimal, and in base64 amid other bytes."""
    redactor = Redactor()
    redactor.learn({"token": SECRET, "more": ["pässw0rd-2"], "number": 3, "nothing": None})
    raw = SECRET.encode()
    forms = [
        SECRET,
        quote(SECRET),
        re.sub("%..", lambda found: found[0].lower(), quote(SECRET, safe="")),
        json.dumps(SECRET),
        raw.hex(),
    ]
    forms += [base64.b64encode(before + raw + after).decode() for before in (b"", b"x", b"xy", b"xyz") for after in (b"", b"end")]
    for form in forms:
        struck = redactor.strike(f"some text {form} and more")
        assert struck.startswith("some text ")
        assert struck.endswith(" and more")
        assert REDACTED in struck, form
    assert redactor.strike("pässw0rd-2") == REDACTED


def test_an_object_loses_values_by_their_names() -> None:
    """A key that names a secret has no value, whatever its type; an argument behind such an option neither; both are learnt."""
    redactor = Redactor()
    value = {
        "user": "web",
        "apiToken": ["one-s3cret"],
        "args": ["--password", "two-s3cret", "--port", "80"],
        "n": 3,
        "secret": None,
    }
    assert redactor.clean_value(value) == {
        "user": "web",
        "apiToken": REDACTED,
        "args": ["--password", REDACTED, "--port", "80"],
        "n": 3,
        "secret": None,
    }
    assert redactor.strike("one-s3cret two-s3cret web") == f"{REDACTED} {REDACTED} web"


def test_words_are_not_secrets() -> None:
    """A short word of letters alone is struck nowhere: a tenant could so take any word out of the archive."""
    redactor = Redactor()
    redactor.learn("bridge")
    redactor.clean("token=default")
    assert redactor.strike("bridge default") == "bridge default"


NETWORK = {
    "cniVersion": "1.0.0",
    "type": "userspace",
    "host": {"bridge": {"bridgeName": "br0", "vlanId": 5}},
    "ipam": {"type": "third-party", "subnet": "10.0.0.0/24", "zone": "hunter-1", "password": "hunter-2", "pin": 12345678},
}


def test_a_network_of_others() -> None:
    """Of a network the known keys stay, also within a text; what an IPAM plugin of others has beside them is left out."""
    redactor = Redactor()
    kept = known_only({"stdin": json.dumps(NETWORK), "unknown": {"a": 1}}, redactor)
    network = json.loads(kept["stdin"])
    assert network["host"] == NETWORK["host"]
    assert network["ipam"] == {
        "type": "third-party",
        "subnet": "10.0.0.0/24",
        "zone": LEFT_OUT,
        "password": REDACTED,
        "pin": LEFT_OUT,
    }
    assert kept["unknown"] == LEFT_OUT
    assert redactor.strike("hunter-2") == REDACTED


def test_a_damaged_network() -> None:
    """The same of what is cut off at any place, or was never JSON: no secret is left of it."""
    text = json.dumps({"value": {"stdin": json.dumps(NETWORK), "x": 'a "hunter-3" b', "netns_inode": 17}})
    for end in range(len(text)):
        kept = known_text(text[:end], Redactor())
        assert not [each for each in ("hunter", "12345678") if each in kept], kept
    assert '"netns_inode": 17' in known_text('{"netns_inode": 17, "x', Redactor())
    assert "hunter" not in known_text('garbage hunter-4 "hunter-5', Redactor())


def test_a_spooled_call() -> None:
    """Of a call the head has CNI's variables without its arguments, the network the known keys."""
    head = "POST /api/v1/del HTTP/1.1\r\nCni-Containerid: c0ffee\r\nCni-Args: TOKEN=hunter-6\r\nX-Other: hunter-7\r\n\r\n"
    kept = known_request(head + json.dumps(NETWORK), Redactor())
    assert "Cni-Containerid: c0ffee" in kept
    assert '"bridgeName": "br0"' in kept
    assert "hunter" not in kept
    assert "hunter" not in known_request(head + '{"ipam": {"zone": "hunter-8', Redactor())
    assert "hunter" not in known_request("hunter-9: of no form\n\nhunter-10", Redactor())


def test_the_environment_of_a_process() -> None:
    """Variables whose names or values say so are learnt, of a process as of the command; directories are not."""
    given = {"SOME_TOKEN": "hunter-11", "PROXY": "http://me:hunter-12@proxy", "OLDPWD": "/srv/dir-13", "HOME": "/home/me"}
    redactor = Redactor()
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.defpath, **given}) as process:
        wait_until(Path(f"/proc/{process.pid}/environ").read_bytes, what="it has its environment")
        learn_environment(redactor, process.pid, str)
        process.kill()
    assert redactor.strike("hunter-11 /srv/dir-13 /home/me") == f"{REDACTED} /srv/dir-13 /home/me"

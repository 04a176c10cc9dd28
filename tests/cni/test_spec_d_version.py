"""Items 38 to 41 of the specification's checklist: VERSION."""

from __future__ import annotations

import json
import subprocess

from tests.cni.spec import SUPPORTED, succeeded
from tests.lab.node.node import Node
from tests.lab.runtimes.runtime import call


def test_038_answer(bare_node: Node) -> None:
    """VERSION echoes the input's cniVersion, or answers our highest, and lists what is supported."""
    for stdin, version in ((b'{"cniVersion":"0.4.0"}', "0.4.0"), (b"{}", "1.1.0"), (b'{"cniVersion":4}', "1.1.0")):
        answer = succeeded(bare_node.run("VERSION", stdin))
        assert answer["cniVersion"] == version
        assert answer["supportedVersions"]


def test_039_never_fails(bare_node: Node) -> None:
    """VERSION never fails, whatever stdin, variables and settings have."""
    for stdin in (b"", b"{", b"[]", b"\xff\xfe", b'{"cniVersion":"77.0.0"}', b'{"cniVersion":null}', b"[" * 100_000):
        made = bare_node.run(
            "VERSION", stdin, "\udcff/../", container="/../", ifname="x" * 400, CNI_ARGS="=;=", CNI_PATH="\udcff:"
        )
        assert succeeded(made)["supportedVersions"] == list(SUPPORTED)
    settings = {"USERSPACE_CNI_CONFIG": "/absent", "USERSPACE_CNI_OVSDB": "nonsense", "USERSPACE_CNI_DEADLINE_S": "never"}
    succeeded(bare_node.run("VERSION", b"{}", **settings))
    closed = ["/bin/sh", "-c", f'exec "{bare_node.plugin}" <&-']
    succeeded(call(closed, "VERSION", {}))


def test_040_needs_nothing(bare_node: Node) -> None:
    """VERSION is answered without privileges, switch or state, and leaves nothing: runtimes ask at every load of a network."""
    bare_node.directory.parent.chmod(0o755)
    before = sorted(bare_node.directory.rglob("*"))
    environ = bare_node.variables("VERSION")
    before += [bare_node.directory / "config.toml"]
    done = subprocess.run(
        [bare_node.plugin], input=b"{}", env=environ, capture_output=True, check=False, user=65534, group=65534, extra_groups=[]
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["supportedVersions"]
    assert sorted(bare_node.directory.rglob("*")) == sorted(before)


def test_041_supported_versions(bare_node: Node) -> None:
    """0.3.0 to 1.1.0 are supported; 0.1.0 and 0.2.0 are not, because their
    results cannot express an attachment without an address.
    """
    answer = succeeded(bare_node.run("VERSION", b"{}"))
    assert answer["supportedVersions"] == ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]

"""Which Pod Security level each example needs: it says so, and the hardened one meets the strictest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.kube.pod_security import LEVELS, controls_broken, level_of
from tests.lab.runtimes.dockerfile import ROOT
from userspace_cni.cli.node.seccomp import NAME

EXAMPLES = [path for path in sorted((ROOT / "deploy" / "examples").glob("*.yaml")) if "template:\n" in path.read_text()]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"the Pod Security level `(\w+)`")
HARDENED: dict[str, Any] = {
    "containers": [
        {
            "name": "app",
            "securityContext": {
                "runAsNonRoot": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "Localhost", "localhostProfile": NAME},
            },
        }
    ],
    "volumes": [{"name": "shared-dir", "emptyDir": {}}],
}


def spec_of(path: Path) -> dict[str, Any]:
    [deployment] = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "Deployment"]
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def pods_of_pages() -> Iterator[tuple[str, dict[str, Any]]]:
    """Page and spec of each whole pod that a page shows."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for each in yaml.safe_load_all(block):
                if isinstance(each, dict) and each.get("kind") == "Pod" and "containers" in each.get("spec", {}):
                    yield page.name, each["spec"]


def changed(**fields: Any) -> dict[str, Any]:
    """The hardened pod with other fields in its container's security context."""
    [container] = HARDENED["containers"]
    return HARDENED | {"containers": [container | {"securityContext": container["securityContext"] | fields}]}


@pytest.mark.parametrize(
    "path", [each for each in EXAMPLES if "kind: Deployment" in each.read_text()], ids=lambda path: path.stem
)
def test_an_example_says_its_level(path: Path) -> None:
    """The head of the file names the strictest level that allows its pods."""
    head = path.read_text().partition("apiVersion")[0]
    assert SAID.findall(head)[:1] == [level_of(spec_of(path))], controls_broken(spec_of(path))


def test_the_hardened_example_is_restricted() -> None:
    """Nothing of it is against any control, and its seccomp profile is the one that `install` puts there."""
    spec = spec_of(ROOT / "deploy" / "examples" / "non-root.yaml")
    assert controls_broken(spec) == []
    [container] = spec["containers"]
    assert container["securityContext"]["seccompProfile"] == {"type": "Localhost", "localhostProfile": NAME}


def test_pods_of_the_pages() -> None:
    """No page shows a pod that needs more than baseline, and the page about other users than root has a restricted one."""
    levels = [(page, level_of(spec)) for page, spec in pods_of_pages()]
    assert ("dpdk-pods.md", "restricted") in levels
    assert [each for each in levels if each[1] == "privileged"] == []


@pytest.mark.parametrize(
    ("spec", "level"),
    [
        (HARDENED, "restricted"),
        (changed(seccompProfile={"type": "RuntimeDefault"}), "restricted"),
        (changed(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}), "restricted"),
        (changed(runAsNonRoot=None), "baseline"),
        (changed(allowPrivilegeEscalation=True), "baseline"),
        (changed(capabilities={"drop": ["NET_RAW"]}), "baseline"),
        (changed(capabilities={"drop": ["ALL"], "add": ["CHOWN"]}), "baseline"),
        (changed(runAsUser=0), "baseline"),
        (HARDENED | {"volumes": [{"name": "x", "nfs": {}}]}, "baseline"),
        (changed(seccompProfile={"type": "Unconfined"}), "privileged"),
        (changed(capabilities={"add": ["NET_ADMIN"]}), "privileged"),
        (changed(privileged=True), "privileged"),
        (changed(seLinuxOptions={"type": "spc_t"}), "privileged"),
        (HARDENED | {"volumes": [{"name": "x", "hostPath": {"path": "/dev"}}]}, "privileged"),
        (HARDENED | {"hostNetwork": True}, "privileged"),
        (HARDENED | {"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}, "privileged"),
    ],
)
def test_the_controls(spec: dict[str, Any], level: str) -> None:
    """Each control is noticed, with the level to which it belongs."""
    assert level in LEVELS
    assert level_of(spec) == level

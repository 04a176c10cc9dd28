"""deploy/check_release.py: each disagreement of version, tag, CHANGELOG and files is told with its file and line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from deploy.check_release import CHANGES, ROOT, find_named, find_problems, main, read_version
from deploy.image_builds import IMAGES

FILES = {
    "pyproject.toml": '[project]\nname = "userspace-cni"\nversion = "1.2.3"\n\n[tool.x]\nversion = "7.7.7"\n',
    CHANGES: "# Log\n\n## Unreleased\n\n- userspace-cni:1.2.2 was the last\n\n## 1.2.3 - 2026-11-28\n\n## 1.2.2 - 2026-10-01\n",
    "README.md": "Get userspace-cni:1.2.3, userspace_cni-1.2.3-cp311-linux_x86_64.whl.\nOr ./userspace-cni_1.2.3-1_amd64.deb.\n",
    "deploy/image/kustomization.yaml": "images:\n  - name: userspace-cni\n    newTag: 1.2.3\n",
    "deploy/images/Dockerfile": 'FROM x\nLABEL org.opencontainers.image.version="1.2.3"\n',
    "debian/changelog": "userspace-cni (1.2.3-1) unstable; urgency=medium\n",
    "docs/page.md": "`userspace-cni --version` says `userspace-cni 1.2.3`; OVN is 24.3.1, KubeVirt v1.9.0.\n",
    "tests/test_x.py": 'IMAGE = "userspace-cni:9.9.9"\n',
}
OTHER_VERSIONS = {
    *("userspace_cni/base/settings.py", "userspace_cni/cni/network_keys.py"),
    *("userspace_cni/cni/former_network.py", "userspace_cni/cni/request.py", "userspace_cni/shim/shim.c"),
}
"""What names the version since which a key is there, and CNI's own 0.1.0."""


def git(tree: Path, *arguments: str) -> None:
    argv = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-C", str(tree), *arguments]
    subprocess.run(argv, env={"PATH": os.defpath}, check=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone in which all agrees."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "link.md").symlink_to("README.md")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    return tmp_path


def test_all_agrees(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then it says so and ends with 0, with the tag of the commit or one that is to be made, or without any."""
    for arguments in ([], ["--tag", "v1.2.3"]):
        assert main(arguments, tree) == 0
        assert capsys.readouterr().out == "check_release: 1.2.3 agrees everywhere\n"
    git(tree, "tag", "v1.2.3")
    git(tree, "tag", "another")
    (tree / CHANGES).write_text(FILES[CHANGES].replace("-28\n", "-28 [YANKED]\n"))
    assert main([], tree) == 0
    assert {each.path for each in find_named(tree)} == FILES.keys() - {"pyproject.toml", CHANGES, "tests/test_x.py"}


@pytest.mark.parametrize(
    ("path", "before", "after", "told"),
    [
        (
            "pyproject.toml",
            'version = "1.2.3"',
            'dynamic = ["version"]',
            "pyproject.toml:1: there is no line",
        ),
        ("pyproject.toml", "1.2.3", "1.2.3rc1", "pyproject.toml:3: 1.2.3rc1 is not of the form 1.2.3"),
        ("README.md", "userspace-cni:1.2.3", "userspace-cni:1.2.2", "README.md:1: it names 1.2.2, and the version is 1.2.3"),
        ("README.md", "userspace_cni-1.2.3", "userspace_cni-1.3.3", "README.md:1: it names 1.3.3"),
        ("README.md", "cni_1.2.3-1_amd64", "cni_1.2.4-1_amd64", "README.md:2: it names 1.2.4"),
        (
            "deploy/image/kustomization.yaml",
            "newTag: 1.2.3",
            'newTag: "1.1.0"',
            "deploy/image/kustomization.yaml:3: it names 1.1.0",
        ),
        ("deploy/images/Dockerfile", '"1.2.3"', '"1.2.0"', "deploy/images/Dockerfile:2: it names 1.2.0"),
        ("debian/changelog", "(1.2.3-1)", "(1.2.1-1)", "debian/changelog:1: it names 1.2.1"),
        ("docs/page.md", "userspace-cni 1.2.3", "userspace-cni 1.0.3", "docs/page.md:1: it names 1.0.3"),
        (
            CHANGES,
            "## Unreleased\n\n- userspace-cni:1.2.2 was the last\n\n",
            "",
            f"{CHANGES}:3: the first heading is to be `## Unrel",
        ),
        (CHANGES, "## 1.2.3 - 2026-11-28\n\n", "", f"{CHANGES}:7: the first version is 1.2.2 - 2026-10-01: `## 1.2.3 - YEAR"),
        (CHANGES, "## 1.2.3 - 2026-11-28\n\n## 1.2.2 - 2026-10-01\n", "", f"{CHANGES}:3: the first version is missing"),
        (CHANGES, "2026-11-28", "28.11.2026", f"{CHANGES}:7: 28.11.2026 is no day"),
        (CHANGES, "2026-11-28", "20261128", f"{CHANGES}:7: 20261128 is no day"),
        (CHANGES, "2026-11-28", "2026-11-31", f"{CHANGES}:7: 2026-11-31 is no day"),
        (CHANGES, " - 2026-11-28", "", f"{CHANGES}:7: the first version is 1.2.3: `## 1.2.3 - YEAR"),
    ],
)
def test_disagreements(tree: Path, path: str, before: str, after: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each one is a line with file and line, and the exit code is 1."""
    text = (tree / path).read_text()
    assert before in text
    (tree / path).write_text(text.replace(before, after, 1))
    assert main([], tree) == 1
    assert any(line.startswith(told) for line in capsys.readouterr().out.splitlines())


def test_tags(tree: Path) -> None:
    """A tag of another version is told, on the commit or as it is given."""
    told = "pyproject.toml:3: the version is 1.2.3, and the tag v1.2.4: the tag of this version is v1.2.3"
    assert list(find_problems(tree, ["v1.2.4"])) == [told]
    git(tree, "tag", "v1.2.4")
    assert main([], tree) == 1
    assert main(["--tag", "1.2.3"], tree) == 1


def test_set(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command writes another version to each place that names it, and to nothing else; CHANGELOG is a person's."""
    assert main(["--set", "2.0.0"], tree) == 0
    named = sorted(FILES.keys() - {CHANGES, "tests/test_x.py"})
    assert capsys.readouterr().out.split() == named
    assert list(find_problems(tree, ["v2.0.0"])) == [
        f"{CHANGES}:7: the first version is 1.2.3 - 2026-11-28: `## 2.0.0 - YEAR-MONTH-DAY` is to come below Unreleased"
    ]
    for path in named:
        assert (tree / path).read_text() == FILES[path].replace("1.2.3", "2.0.0")
    with pytest.raises(SystemExit):
        main(["--set", "next"], tree)


def test_this_tree() -> None:
    """All that names the version here agrees: CHANGELOG, manifests, examples, pages and every image's file."""
    assert main([]) == 0
    paths = {each.path for each in find_named(ROOT)}
    assert {f"deploy/images/{file}" for file in IMAGES.values()} <= paths
    assert {"README.md", "deploy/cluster/image/kustomization.yaml", "deploy/examples/pair.yaml"} <= paths
    assert len(paths) > 15


def test_no_source_repeats_it() -> None:
    """The programs ask which build they are: no source has the version in it. Since when a key is there is another thing."""
    version, _ = read_version(ROOT)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    sources = [
        path for path in listed if path.startswith(("userspace_cni/", "kubevirt/", "localdb/")) and (ROOT / path).is_file()
    ]
    having = {path for path in sources if version in (ROOT / path).read_text().replace(f"1{version}", "")}
    assert having - OTHER_VERSIONS == set()

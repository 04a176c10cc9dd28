"""The image of KubeVirt's sidecar as its Dockerfile makes it: it starts, says which build it is, and has nothing beside that."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.lab.runtimes.built_image import BUILD, build_image
from tests.lab.runtimes.containerd_host import remove_cgroup
from tests.lab.runtimes.dockerfile import SIDECAR
from tests.lab.runtimes.podman import Storage, own_storage

pytestmark = pytest.mark.timeout(900)  # the first run on a machine makes a Debian
IMAGE = f"docker.io/library/userspace-cni-kubevirt-sidecar:{BUILD.version}"
CGROUP = "/userspace-cni-sidecar-image"
LARGEST = 100_000_000
BYTECODE = """
import json, pathlib
found = [path for top in ("/opt/sidecar", "/usr/lib/python3.11") for path in pathlib.Path(top).rglob("*.pyc")]
print(json.dumps([len(found), [str(path) for path in found if path.read_bytes()[4:8] != b"\\x01\\0\\0\\0"]]))
"""
"""Prints how many files of bytecode there are, and those that are compared with their sources' time, which the image changes."""


@pytest.fixture(scope="module")
def images(machine_as_it_was: None) -> Iterator[Storage]:
    with own_storage() as (podman, directory):
        build_image(podman, directory, SIDECAR, IMAGE)
        yield podman
        remove_cgroup(CGROUP)


def test_the_sidecar_starts(images: Storage) -> None:
    """As the image's user it says version and commit; its bytecode is used whatever the time of files is."""
    run = ["run", "--rm", "--network=none", f"--cgroup-parent={CGROUP}"]
    assert images.call(*run, IMAGE, "--version") == f"{BUILD.summary}\n"
    count, by_time = json.loads(images.call(*run, "--entrypoint=/usr/bin/python3", IMAGE, "-c", BYTECODE))
    assert (count > 100, by_time) == (True, [])


def test_what_is_in_the_image(images: Storage) -> None:
    """It has labels, no shell, and less than a hundred megabytes."""
    [told] = json.loads(images.call("image", "inspect", IMAGE))
    labels = {name.rpartition(".")[2]: value for name, value in told["Labels"].items() if "opencontainers" in name}
    name = IMAGE.rpartition("/")[2].partition(":")[0]
    assert (labels["title"], labels["version"], labels["revision"]) == (name, BUILD.version, BUILD.commit)
    assert told["Size"] < LARGEST
    done = images.attempt("run", "--rm", "--network=none", f"--cgroup-parent={CGROUP}", "--entrypoint=/bin/sh", IMAGE)
    assert (done.returncode, "/bin/sh" in done.stderr) == (127, True)

"""The sidecar's image has everything that the sidecar needs and no more, and runs in the memory that KubeVirt gives."""

from __future__ import annotations

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kubevirt.definition import VMI_MARKS_MAX, VMI_MAX
from kubevirt.xml_document import NODES_MAX
from tests.lab.guests.hooks import HookManager, Sidecar, vmi
from tests.lab.guests.sidecar_image import LIBRARIES, STAGING, interpreter, lay_out
from tests.lab.runtimes.dockerfile import ROOT, SIDECAR, copies
from userspace_cni.pod.launcher import QEMU_ID

MEMORY_MAX = 48 * 1024
"""KiB; KubeVirt's default limit for a sidecar is 64 MB."""
DISK = "<disk type='block' device='disk'><driver name='qemu' type='raw'/><source dev='/dev/d{0}'/><target dev='vd{0}'/></disk>"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that sees only the image's files."""
    return lay_out(tmp_path_factory.mktemp("image") / "sidecar")


def domain(disks: int) -> str:
    """A definition with this many disks, of about 140 bytes each."""
    return (
        "<domain type='kvm'><name>default_vm1</name><memoryBacking><hugepages/><source type='memfd'/></memoryBacking>"
        f"<devices>{''.join(DISK.format(number) for number in range(disks))}</devices></domain>"
    )


def markup() -> str:
    """A definition with the largest number of elements and attributes that is read."""
    return domain(1).replace("</devices>", "<a b=''/>" * (NODES_MAX // 2 - 20) + "</devices>")


def padded(guest: dict[str, Any], piece: str) -> bytes:
    """A VMI of the largest size that is read: as much as possible is a list of `piece`, the rest one string."""
    text = json.dumps(guest)[:-1] + ', "pieces": ['
    marks = 1 + sum(piece.count(mark) for mark in "{[,")
    number = min((VMI_MARKS_MAX - 100) // marks, (VMI_MAX - len(text) - 100) // (len(piece) + 1))
    text += ",".join([piece] * number) + '], "rest": "'
    return f'{text}{"x" * (VMI_MAX - len(text) - 2)}"}}'.encode()


def test_what_the_image_is_built_from() -> None:
    """Every file that is copied exists. The image has nothing else, and runs the sidecar as KubeVirt's user."""
    text = SIDECAR.read_text()
    copied = {name for copy in copies(SIDECAR) for name in copy.sources}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {"kubevirt", "userspace_cni/pod", "userspace_cni/__init__.py", "constraints.txt"} <= copied
    assert f"USER {QEMU_ID}:{QEMU_ID}" in text
    assert text.rstrip().endswith('ENTRYPOINT ["/usr/bin/python3", "-m", "kubevirt"]')
    last = text.rpartition("FROM ")[2]
    assert last.startswith("scratch\n")
    assert re.findall(r"^(?:ADD|COPY|RUN) .*", last, re.MULTILINE) == [f"COPY --from=build {STAGING} /"]
    assert not re.search(r"\b(gcc|python3-dev)\b", text)


def test_libraries_are_those_of_the_constraints() -> None:
    """pip installs versions of constraints.txt, which are the ones that the test uses."""
    asked = re.findall(r"-t /image/opt/sidecar (.*)$", SIDECAR.read_text(), re.MULTILINE)[0].split()
    constraints = (ROOT / "constraints.txt").read_text()
    assert asked == ["grpcio", "protobuf"]
    assert all(re.search(rf"^{name}==", constraints, re.MULTILINE) for name in [*asked, "typing_extensions"])
    assert set(LIBRARIES) == {"grpc", "google", "typing_extensions"}


def test_the_image_is_enough(image: dict[str, str]) -> None:
    """The sidecar starts with the image's files and with nothing else of the project or of the tests' packages."""
    argv = [*interpreter(), "-m", "kubevirt", "--help"]
    done = subprocess.run(argv, env=image, cwd="/", capture_output=True, text=True, timeout=60, check=True)
    assert "USERSPACE_CNI_KUBEVIRT_BINDING" in done.stdout
    for module in ("userspace_cni.cli", "userspace_cni.attachment.plan", "yaml", "click", "localdb"):
        argv = [*interpreter(), "-c", f"import {module}"]
        done = subprocess.run(argv, env=image, cwd="/", capture_output=True, text=True, timeout=60, check=False)
        assert "ModuleNotFoundError" in done.stderr


def test_every_module_finds_what_it_imports(image: dict[str, str]) -> None:
    """The image has everything that the sidecar imports, at its start or later."""
    script = """
import importlib, pkgutil, kubevirt
for module in pkgutil.walk_packages(kubevirt.__path__, "kubevirt."):
    if not module.name.endswith(".__main__"):
        print(importlib.import_module(module.name).__name__)
"""
    done = subprocess.run(
        [*interpreter(), "-c", script], env=image, cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"kubevirt.sidecar_server", "kubevirt.lint.linted_domain", "kubevirt.protocol.v1alpha3_pb2"} <= set(
        done.stdout.split()
    )


def test_memory(image: dict[str, str]) -> None:
    """The largest accepted inputs, whole or of small pieces, and many at once, take less than 48 MiB, which is given back."""
    large, guest = domain(1000), vmi(**{f"net{number}": "vhostuser" for number in range(4)})
    assert len(large) > 100_000
    with TemporaryDirectory(prefix="uk-") as directory, Sidecar(Path(directory), **image).start(python=interpreter()) as sidecar:
        manager = HookManager(Path(directory)).collect()
        small = manager.on_define_domain(domain(1), guest)
        before = sidecar.memory()
        for _ in range(10):
            assert manager.on_define_domain(large, guest).count("vhostuser") > 4
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: manager.on_define_domain(large, guest), range(12)))
        assert manager.on_define_domain(domain(1), guest) == small
        after = sidecar.memory()
        hostile = (
            (domain(1), padded(guest, '{"a":1}')),
            (domain(1), padded(guest, '"\\ud83d\\ude00xx"')),
            (markup(), padded(guest, "{}")),
        )
        for definition, machine in hostile:
            assert b"vhostuser" in manager.callbacks[0].on_define_domain(definition, machine)
        with ThreadPoolExecutor(8) as threads:
            callback = manager.callbacks[0]
            list(threads.map(lambda _: callback.on_define_domain(large, padded(guest, '{"a":1}')), range(16)))
        largest = sidecar.memory()
        print(f"resident {before['VmRSS']} KiB, after large definitions {after['VmRSS']} KiB, at most {largest['VmHWM']} KiB")
        assert largest["VmHWM"] < MEMORY_MAX, largest
        assert after["VmRSS"] < before["VmRSS"] + 5 * 1024, (before, after)

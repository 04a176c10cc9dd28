"""Power cuts while specs of the node change: whatever unflushed writes are lost or torn, the next boot meets the spec or undoes
all.

The effects are hostile: everything that was made still exists after the boot, as rows of OVSDB do.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.power_cuts import Image, Trace, images, restore
from tests.crash.test_power_cuts import is_of_the_run, memory  # noqa: F401 - a fixture
from tests.unit.attachment.test_specs import CHANGES, NEW, Site, reconcile, spec, things
from userspace_cni.attachment.steps import Step

Stand = dict[tuple[str, str], Step]


def cuts(directory: Path, change: str, patch: pytest.MonkeyPatch, *, flushes: bool = True) -> Iterator[tuple[Image, Stand]]:
    """Every different power cut during the change: the disk's content without the run directory, and what exists."""
    first, last = CHANGES[change]
    site, trace = Site(directory), Trace(directory)
    with patch.context() as patched:
        trace.note(patched, flushes=flushes)
        reconcile(site, *first)
        noted: list[tuple[int, Stand]] = [(len(trace.changes), dict(site.stand))]
        site.moment = lambda _: noted.append((len(trace.changes), dict(site.stand)))
        reconcile(site, *last)
    seen, chance = set(), random.Random(7)
    for (at, stand), (until, _) in zip(noted, [*noted[1:], (len(trace.changes), {})], strict=True):
        for count in range(at, until + 1):
            changes = [each for each in trace.changes[:count] if not is_of_the_run(each, trace)]
            for image in images(changes, chance):
                key = (frozenset(image.items()), things(*stand.values()))
                if key not in seen:
                    seen.add(key)
                    yield image, stand


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_boot_meets_or_undoes_it(memory: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:  # noqa: F811
    """After each power cut, the next boot meets the spec and nothing else exists; without the spec, nothing is left."""
    number = 0
    for number, (image, stand) in enumerate(cuts(memory / "told", change, monkeypatch), 1):
        for desired in ((spec(*NEW),), ()):
            directory = memory / str(number)
            directory.mkdir()
            site = Site(directory, boot="boot-2", stand=dict(stand))
            restore(image, directory)
            assert all(each.holds for each in reconcile(site, *desired).values()), (number, image)
            assert site.steps() == (things(*NEW) if desired else things()), (number, image)
            assert reconcile(site) == {}
            assert (site.steps(), site.journal.node_records()) == (things(), []), (number, image)
            shutil.rmtree(directory)
    print(f"{change}: {number} power cuts")
    assert number >= 5


def test_a_disk_that_lies_is_found(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The replay can fail: without flushes something remains that no record names."""
    left: set[str] = set()
    for number, (image, stand) in enumerate(cuts(memory / "told", "applied", monkeypatch, flushes=False)):
        directory = memory / str(number)
        directory.mkdir()
        site = Site(directory, boot="boot-2", stand=dict(stand))
        restore(image, directory)
        reconcile(site)
        left |= site.steps()
        shutil.rmtree(directory)
    assert left

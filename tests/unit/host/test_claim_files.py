"""Files about claims' devices, where the directory for them is not as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from userspace_cni.attachment.steps import ClaimFile
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.host.files.claim_files import ClaimFileDriver


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    """Nothing can be written there, and nothing of a claim is there: a pod whose claim is unprepared ends."""
    place = tmp_path / "cdi"
    step, driver, deadline = ClaimFile(str(place), "c-0.json", "{}\n"), ClaimFileDriver(), Deadline.after(60)
    driver.apply(step, deadline)
    assert driver.check(step, deadline) == []
    (place / step.name).unlink()
    place.rmdir()
    place.write_text("")
    with pytest.raises(UserspaceError, match=r"c-0\.json.*Not a directory"):
        driver.apply(step, deadline)
    assert len(driver.check(step, deadline)) == 1
    driver.undo(step, deadline)
    assert place.read_text() == ""

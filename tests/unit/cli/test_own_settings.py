"""The part of a settings file that a command keeps there."""

from __future__ import annotations

from pathlib import Path

import pytest

from userspace_cni.base.settings import Settings
from userspace_cni.cli.network.own_settings import FileLock, append_table, plan_block
from userspace_cni.cli.site import CommandRefused, Site

GATEWAY = '[[gateway]]\nport = "gw0"\nbridge = "br0"\naddresses = ["10.0.0.1/24"]\n'
AFTER = '\n[[gateway]]\nport = "gw1"\nbridge = "br0"\naddresses = ["10.1.0.1/24"]\n'


def test_what_follows_a_part_without_its_end_stays(tmp_path: Path) -> None:
    """It may be an administrator's: the command is refused, and with the line put back it changes its own part alone."""
    file = tmp_path / "config.toml"
    settings = Settings(state_dir=str(tmp_path / "state"), run_dir=str(tmp_path / "run"))
    site = Site(settings, environ={"USERSPACE_CNI_CONFIG": str(file)})
    file.write_text(f"# written by us: begin\n{GATEWAY}{AFTER}")
    with pytest.raises(CommandRefused, match="written by us: end"):
        plan_block(site, "gateway", "us", GATEWAY.replace("10.0.0.1", "10.0.0.2"))
    assert file.read_text() == f"# written by us: begin\n{GATEWAY}{AFTER}"
    file.write_text(f"# written by us: begin\n{GATEWAY}# written by us: end\n{AFTER}")
    assert plan_block(site, "gateway", "us", GATEWAY.replace("10.0.0.1", "10.0.0.2")).write()
    assert file.read_text() == f"# written by us: begin\n{GATEWAY.replace('10.0.0.1', '10.0.0.2')}# written by us: end\n{AFTER}"


def test_what_was_written_after_a_table_stays_when_that_is_taken_back(tmp_path: Path) -> None:
    """Another command may have added its own meanwhile."""
    file = tmp_path / "config.toml"
    site = Site(Settings(state_dir=str(tmp_path / "state")), environ={"USERSPACE_CNI_CONFIG": str(file)})
    file.write_text('log_level = "info"\n')
    take_back = append_table(site, "gateway", GATEWAY)
    append_table(site, "gateway", AFTER.lstrip())
    take_back()
    assert 'port = "gw0"' not in file.read_text()
    assert file.read_text().endswith(AFTER)


def test_a_settings_file_that_is_a_link_stays_one(tmp_path: Path) -> None:
    """The file at its end is written; what is no file, or a link to none, is refused, and stays as it is."""
    link, file = tmp_path / "config.toml", tmp_path / "kept/node.toml"
    site = Site(Settings(state_dir=str(tmp_path / "state")), environ={"USERSPACE_CNI_CONFIG": str(link)})
    file.parent.mkdir()
    file.write_text('log_level = "info"\n')
    link.symlink_to("kept/node.toml")
    take_back = append_table(site, "gateway", GATEWAY)
    assert plan_block(site, "gateway", "us", AFTER).write()
    assert link.is_symlink()
    assert 'port = "gw0"' in file.read_text()
    assert 'port = "gw1"' in file.read_text()
    take_back()
    assert 'port = "gw0"' not in file.read_text()
    for target in ("nowhere.toml", "kept", "/dev/null"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(CommandRefused, match="no link to one"):
            append_table(site, "gateway", GATEWAY)
        assert link.readlink() == Path(target)
    assert sorted(tmp_path.iterdir()) == [link, file.parent]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_as_they_did(tmp_path: Path, end: str) -> None:
    """An editor of another system has written the file: what a command adds ends so, too, and is found again."""
    file = tmp_path / "config.toml"
    site = Site(Settings(state_dir=str(tmp_path / "state")), environ={"USERSPACE_CNI_CONFIG": str(file)})
    file.write_bytes(f'log_level = "info"{end}'.encode())
    assert plan_block(site, "gateway", "us", GATEWAY).write()
    whole = file.read_bytes()
    assert whole.count(end.encode()) == whole.count(b"\n")
    assert not plan_block(site, "gateway", "us", GATEWAY).write()
    take_back = append_table(site, "gateway", AFTER.lstrip())
    assert file.read_bytes().count(end.encode()) == file.read_bytes().count(b"\n")
    take_back()
    assert file.read_bytes() == whole
    assert plan_block(site, "gateway", "us", "").write()
    assert file.read_bytes().decode().split() == ["log_level", "=", '"info"']


def test_a_change_that_could_not_be_written_is_known_before(tmp_path: Path) -> None:
    """Nothing may replace the file: proving it says so, and leaves nothing. Without a change there is nothing to prove."""
    file = tmp_path / "config.toml"
    site = Site(Settings(state_dir=str(tmp_path / "state")), environ={"USERSPACE_CNI_CONFIG": str(file)})
    change = plan_block(site, "gateway", "us", GATEWAY)
    change.prove()
    assert list(tmp_path.iterdir()) == []
    change.write()
    file.with_name(".config.toml.new").mkdir()
    with pytest.raises(CommandRefused, match="Is a directory"):
        plan_block(site, "gateway", "us", AFTER).prove()
    plan_block(site, "gateway", "us", GATEWAY).prove()


def test_a_file_that_cannot_be_held(tmp_path: Path) -> None:
    """Its directory cannot be made: a command that writes is refused, and the block of one that need not goes on."""
    (tmp_path / "file").write_text("")
    site = Site(Settings(), environ={"USERSPACE_CNI_CONFIG": str(tmp_path / "file/config.toml")})
    with FileLock(site) as lock, pytest.raises(CommandRefused, match="locking"):
        lock.require()

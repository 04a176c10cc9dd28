"""Where OVN's databases are, and with which files they are reached: by settings, else by the switch's external_ids. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.setting_forms import REMOTES
from userspace_cni.base.settings import Settings
from userspace_cni.ovsdb.database import Tls, split_remote

_USUAL: Final = {"ovn_nb": "unix:/var/run/ovn/ovnnb_db.sock", "ovn_sb": "unix:/var/run/ovn/ovnsb_db.sock"}
"""Where OVN's own programs look: on the machine of the databases."""
_IDS: Final = {"ovn_nb": "ovn-nb", "ovn_sb": "ovn-remote"}
"""The keys of Open_vSwitch external_ids that say it."""
_FILES: Final = ("ovn_private_key", "ovn_certificate", "ovn_ca_cert")


def northbound_remote(settings: Settings, external_ids: Mapping[str, str]) -> str:
    """The remote of the northbound database. Raises InvalidConfig for one that cannot be."""
    return _remote("ovn_nb", settings.ovn_nb, external_ids)


def southbound_remote(settings: Settings, external_ids: Mapping[str, str]) -> str:
    """The remote of the southbound database. Raises InvalidConfig for one that cannot be."""
    return _remote("ovn_sb", settings.ovn_sb, external_ids)


def tls_files(settings: Settings, remote: str) -> Tls | None:
    """The files for a remote with an address `ssl:`; None for others. Raises InvalidConfig unless all three are set."""
    if not any(each.startswith("ssl:") for each in split_remote(remote)):
        return None
    files = {key: getattr(settings, key) for key in _FILES}
    if missing := [key for key, path in files.items() if not path]:
        raise InvalidConfig(
            f"OVN at {remote}: {' and '.join(missing)} must be set", "TLS needs a key, a certificate and its CA's"
        )
    return Tls(*files.values())


def reached_remote(remote: str, map_path: Callable[[str], str]) -> str:
    """The remote as this process reaches it: `map_path` translates a path of the host. Raises DirectoryRefused as it does."""
    parts = [each.partition(":") for each in split_remote(remote)]
    return ",".join(f"unix:{map_path(place)}" if kind == "unix" else f"{kind}:{place}" for kind, _, place in parts)


def reached_files(tls: Tls | None, map_path: Callable[[str], str]) -> Tls | None:
    """The files as this process reaches them, as `reached_remote`."""
    return None if tls is None else Tls(map_path(tls.key), map_path(tls.certificate), map_path(tls.authority))


def _remote(setting: str, value: str, external_ids: Mapping[str, str]) -> str:
    if value:
        return value
    key = _IDS[setting]
    remote = external_ids.get(key, "").strip()
    if not remote:
        return _USUAL[setting]
    if wrong := REMOTES.wrong(remote):
        raise InvalidConfig(f"external_ids:{key} of Open_vSwitch is {remote!r}", f"{wrong}; setting {setting} overrides it")
    return remote

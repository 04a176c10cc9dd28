"""Prints /etc/userspace-cni/config.toml of the Debian package: each setting with its default, as a comment."""

from __future__ import annotations

import json
import sys
from typing import Final

from userspace_cni.base.settings import TABLE, TABLES_OF_FILE, Settings

HEAD: Final = """\
# The settings of this node: userspace-cni-settings(5). Each line has a default. To change one, take the sign in front of it away;
# then `userspace-cni settings check /etc/userspace-cni/config.toml`, and `systemctl restart userspace-cni`.
#
# The plugin carries socket, run_dir, state_dir and spool_max in itself: docs/install.md says what else these four take.
"""
TABLES: Final = "\n# Tables may follow, each as often as it is needed; their keys are in userspace-cni-settings(5):"


def main() -> int:
    """Print it."""
    usual = {"shared_dirs": Settings().usual_shared_dirs}
    print(HEAD)
    for key, (default, setting) in TABLE.items():
        value = usual.get(key, default)
        shown = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
        print(f"#{key} = {shown}  # {setting.help}")
    print(TABLES, ", ".join(f"[[{name}]]" for name in TABLES_OF_FILE))
    return 0


if __name__ == "__main__":
    sys.exit(main())

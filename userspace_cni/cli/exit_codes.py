"""How commands end. 0: all is well."""

from __future__ import annotations

from typing import Final

FOUND: Final = 1
"""Something was found, or failed."""
USAGE: Final = 2
"""The call or the settings are wrong."""
UNREACHABLE: Final = 3
"""What was to be asked does not answer, or may not be asked."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell has it."""

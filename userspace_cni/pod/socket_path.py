"""The greatest length of a unix socket's path, for container, sidecar and node. Pure."""

SUN_PATH_MAX = 107
"""Bytes of the path: sun_path of sockaddr_un has 108, one of which is the NUL (unix(7))."""

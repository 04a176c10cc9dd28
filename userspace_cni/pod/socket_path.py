"""How long the path of a unix socket can be: the same for the container, the sidecar and the node. Pure."""

SUN_PATH_MAX = 107
"""Bytes of the path: sun_path of sockaddr_un has 108, one of which is the NUL (unix(7))."""

"""Frames of our own through ports: what measures, on which cores, and who is at the sockets meanwhile."""

"""Directories, mounts, sockets and files of pods and of the node."""

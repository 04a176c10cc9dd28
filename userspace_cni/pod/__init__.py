"""The container's side: the formats in which a pod is told of its interfaces, and the DPDK arguments made from them.

Uses only the standard library and nothing else of this project, so that the directory can be copied into an image as it is.
"""

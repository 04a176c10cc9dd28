"""The container's side: the formats that describe its interfaces to a pod, and the DPDK arguments made from them.

Must use only the standard library and nothing else of this project, so that the directory can be copied into an image as it is.
"""

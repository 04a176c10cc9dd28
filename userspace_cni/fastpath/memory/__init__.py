"""Hugepages, and memory that is lent to the other side of a socket."""

"""Netlink on the path of a verb: hand-packed messages, several in one send, each with its own answer.

pyroute2 does the same for what has time: it costs 4 ms per attachment, and its namespaces fork. Nothing here knows a step or a
record, and nothing enters a namespace: a connection stays in the one in which its thread was when it made it.
"""

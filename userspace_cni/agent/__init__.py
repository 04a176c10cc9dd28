"""The node agent: the same verbs as the plugin in-process, behind a socket, by a process that stays."""

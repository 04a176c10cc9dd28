"""The node agent: a process that stays and serves the plugin's verbs over a socket."""

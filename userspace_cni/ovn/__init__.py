"""OVN: its databases, and what a cluster's logical network is to be in them. For commands and the controller, not for verbs."""

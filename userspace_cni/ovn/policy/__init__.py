"""Policies of Kubernetes as port groups, ACLs and address sets of OVN's northbound database."""

"""The switch: the only rooms that speak OVSDB or to ovs-vswitchd. Imported by `node` alone."""

"""A VM's QEMU in its launcher pod: how its interface is attached, and what keeps it from its network."""

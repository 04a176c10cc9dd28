"""Who uses an interface: what differs between a pod's application and a VM's QEMU, and the rules about each."""

"""The driver of devices (DRA): bridges as devices in ResourceSlices, and claims of these: ports before there is a pod."""

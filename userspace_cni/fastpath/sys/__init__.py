"""System calls that Python has not, and what the kernel says of unix sockets."""

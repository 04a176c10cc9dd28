"""The ground below all rooms: system calls that Python has not, deadlines, and what the kernel says of unix sockets."""

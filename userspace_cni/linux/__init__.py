"""The ground below all rooms: system calls that Python lacks, deadlines, what the kernel says of unix sockets and this boot."""

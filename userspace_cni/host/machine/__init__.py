"""What the machine is like: processors, memory, the kernel's parts, and processes. It only reads.

What cannot be read raises Unavailable, or is None where the rest is worth having: nothing here takes "unknown" for "absent".
"""

"""What is said to the kernel by netlink: messages and typed answers, a module for each kind of thing.

`linux.netlink` carries them. pyroute2, a library for both, serves where a person waits: `own_link` sets up a tap's link with it.
On the path of a verb it costs 4 ms and forks, and in the agent 12 MiB. Nothing here decides, and nothing but `netns` enters a
namespace: a connection stays in the one in which its thread was when it made it.
"""

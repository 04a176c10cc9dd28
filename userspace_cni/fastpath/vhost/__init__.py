"""The vhost-user protocol from both ends: messages, sockets, the front-end and the back-end."""

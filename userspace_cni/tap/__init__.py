"""A kernel link in a pod whose wire is a vhost-user socket."""

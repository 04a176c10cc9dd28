"""Routes into running pods, from the Route resource: what is asked, for which pods, and what that is in a pod's namespace."""

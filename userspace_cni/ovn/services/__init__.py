"""Services of Kubernetes as load balancers of OVN."""

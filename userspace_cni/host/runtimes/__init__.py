"""What container runtimes, the kubelet and delegated plugins are asked and told."""

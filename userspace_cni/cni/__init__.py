"""The contract with the runtime: request, configuration, result and protocol. Pure."""

"""Commands about this node: agent, installation, attachments."""

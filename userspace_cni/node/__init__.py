"""The composition root: which driver makes which step on this node, what is known of it, and what the settings say of both."""

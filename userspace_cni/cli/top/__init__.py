"""`top`: what the attachments of this node carry, live. Pure functions make what is on the screen."""

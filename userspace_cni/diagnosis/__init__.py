"""What is wrong, gathered and rendered: facts of all rooms become findings here, and findings become text and JSON.

A module takes facts that others have looked at and gives a list of `Finding`; where a room below sees what is wrong by itself, it
gives its findings. Nothing is mended here.
"""

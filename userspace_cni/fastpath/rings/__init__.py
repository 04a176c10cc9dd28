"""Virtqueues and what carries frames through them: memory and rings in C, bound with cffi."""

"""What every room may use: errors, settings, log, deadlines, the host's root."""

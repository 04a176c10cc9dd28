"""Commands that send frames."""

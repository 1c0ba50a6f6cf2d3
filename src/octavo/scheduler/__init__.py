"""Who runs in the next step."""

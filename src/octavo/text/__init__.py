"""Text to token ids and back, and the templates that turn a conversation into text."""

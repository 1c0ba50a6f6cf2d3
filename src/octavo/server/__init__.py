"""HTTP: the OpenAI API over an engine."""

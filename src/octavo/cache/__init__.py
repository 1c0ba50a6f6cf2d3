"""Who owns which block of the KV cache: ids and counts only."""

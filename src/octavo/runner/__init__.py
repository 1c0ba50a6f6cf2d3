"""Ids become arrays, arrays become logits."""

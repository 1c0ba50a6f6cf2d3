"""What is computed: model families, from weights to programs."""

"""Toy models and writers that tests share."""

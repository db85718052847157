"""Choosing configurations by prediction."""

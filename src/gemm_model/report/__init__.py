"""Showing predictions and their accuracy: console texts and plots."""

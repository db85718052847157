"""The two models of the classic project."""

"""Adapters to the tools people already use; each imports its tool only when it is asked for."""

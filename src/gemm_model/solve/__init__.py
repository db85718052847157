"""The best tile and ring buffer for a problem: exact search, and an SMT encoding that proves it."""

"""The producer/consumer pipeline: loads fill a ring buffer in shared memory, math empties it."""

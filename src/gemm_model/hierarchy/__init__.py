"""The memory hierarchy as seen by one SM: what each level can deliver, and what tiling makes of it."""

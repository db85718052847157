"""Measurements as a data set: Parquet parts by GPU, family and regime, and a record of each run."""

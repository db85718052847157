"""Work spread over the processes of a Dask cluster: sweeps over many cards, fits over many processors."""

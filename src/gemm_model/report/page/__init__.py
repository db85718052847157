"""Pages to look at: each one HTML file that needs no network and holds its data and plotting library."""

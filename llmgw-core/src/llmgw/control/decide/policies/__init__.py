"""Ways to rank feasible placements that come with the core, and parts to build others from."""

"""The replay page: traces of one workload as a single HTML file that any browser opens."""

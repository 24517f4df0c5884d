"""How one request gets its answer: a hit, a call, one of the proxy's own pages, or a refusal."""

"""Serves: a machine fit for it, an engine that starts warm behind the proxy, and somebody who restarts it."""

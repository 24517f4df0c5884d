"""The response cache in front of the engine."""

"""Puts every host under the same load at the same moment."""

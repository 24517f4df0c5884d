"""BLAST: everyone under the same load, at the same moment."""

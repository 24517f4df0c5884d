"""`toolkit report`: its command line (verb), and what the store holds of a run and of the stack that served it (stored)."""

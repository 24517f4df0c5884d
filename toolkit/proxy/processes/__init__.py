"""What runs: one process with all of it, or an owner with workers beside it; and whoever runs them, who asks and orders."""

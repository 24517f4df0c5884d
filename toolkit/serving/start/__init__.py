"""One engine from its flags to its first token, and what its log says where it fails."""

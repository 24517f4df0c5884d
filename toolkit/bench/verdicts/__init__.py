"""What explains a host's speed: one file per rule, and `judgement`, which tries them all on one host."""

"""Which devices this machine has, and which backend `--backend auto` picks for them."""

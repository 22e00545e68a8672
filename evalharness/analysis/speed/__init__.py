"""How fast an engine was, how fast its card would let it be, and what stood between the two."""

"""What a checkpoint, an adapter or a GGUF file is, read from its files alone: nothing is loaded, no torch is imported."""

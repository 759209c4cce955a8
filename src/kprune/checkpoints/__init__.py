"""Model folders on disk: read, load, write, inspect."""

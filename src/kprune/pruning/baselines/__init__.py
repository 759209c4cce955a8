"""Rival methods, one file each."""

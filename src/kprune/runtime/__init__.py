"""The machine: processes, memory, devices, tensors on disk."""

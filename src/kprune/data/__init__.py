"""Files, tables and data sets, turned into calibration batches and tests."""

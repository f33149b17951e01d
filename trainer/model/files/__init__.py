"""Directories and files of a model: reading, exporting, converting, writing tensors."""

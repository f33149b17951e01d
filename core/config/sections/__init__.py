"""The sections of the configuration: every key with its type, default and description.

A component receives its own section; `core/config/config.py` has the whole.
"""

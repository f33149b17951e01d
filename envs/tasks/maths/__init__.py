"""Maths: solve a problem, with Python as a tool."""

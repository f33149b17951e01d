"""Where models come from: finds `hub:` models, and imports models into directories that trainer and
policy servers can load.
"""

"""The settings of a site, and the only reader of ``GPUQUEUE_*`` and of the settings file.

``settings.py`` lists every setting with its default; ``parsers.py`` reads the text of each.
"""

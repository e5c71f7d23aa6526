"""The settings of a site. Only this package reads them from the environment (``GPUQUEUE_*``) and the settings file.

``settings.py`` lists every setting with its default; ``sources.py`` reads them and checks that they fit together;
``parsers.py`` parses the text of each.
"""

"""Pilots: workers of this site on devices that an engine lends for some hours.

``fleet.py`` starts, lists and ends pilots from the machine of the service. ``script.py`` is the text that the engine
runs, and ``node.py`` what that starts on the engine's machine.
"""

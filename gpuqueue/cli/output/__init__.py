"""Values as text: tables, columns, colours and JSON for the terminal.

Nothing here asks the client for anything, and no command is imported here. Start reading at ``render.py``.
"""

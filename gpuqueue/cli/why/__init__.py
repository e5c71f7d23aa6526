"""The parts of the answer that ``gpuqueue why`` prints.

Pure: each module turns an explanation into lines, a table or JSON. The command itself is ``commands/why.py``.
"""

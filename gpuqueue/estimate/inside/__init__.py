"""What runs inside the script's own Python during a dry run. Executed by path; nothing here is imported by us.

Standard library, and the torch that is there. Kept to old words: that Python may be 3.8.
"""

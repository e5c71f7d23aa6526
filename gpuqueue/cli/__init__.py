"""The command line: it parses arguments, makes one call of the client and prints the answer. No logic of its own."""

"""The command line: words in, one call of the client, words out. No logic of its own."""

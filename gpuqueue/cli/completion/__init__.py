"""Shell completion: the candidates for the word at the cursor, and the scripts for bash, zsh and fish."""

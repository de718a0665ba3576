"""The base of every command: options, output of results and mistakes, exit status."""

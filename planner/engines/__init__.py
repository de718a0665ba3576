"""Other engines: the command line, ports and probes of each."""

"""Other engines: what each is told."""

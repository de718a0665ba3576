"""Other engines: what each is told, and what each cannot do."""

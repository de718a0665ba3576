"""Other engines: what each is told so that it runs a unit of the plan, and what each cannot do."""

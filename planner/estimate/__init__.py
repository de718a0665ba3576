"""What a plan will do: bytes on links, what a failure stops, which experts survive it."""

"""What happens to a request: its HTTP body becomes tokens for ranks, and their tokens become an answer."""

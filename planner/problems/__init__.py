"""What can be wrong: findings in four parts, their fixes, and the errors that carry findings."""

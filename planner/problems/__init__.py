"""Problems: findings in four parts, errors, and fixes."""

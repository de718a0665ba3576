"""Objects of a cluster: applied, compared, awaited, deleted. It knows neither Pulumi nor plans."""

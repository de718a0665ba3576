"""One object on one cluster: applied, compared, awaited, deleted. It knows neither Pulumi nor what a plan holds."""

"""Who is computed next: requests, batches, phases, sampling."""

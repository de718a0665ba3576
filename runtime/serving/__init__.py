"""The choice of what is computed next: requests, the scheduler, the step loop with one file a phase, sampling."""

"""The `gitops` commands: pull requests, checked before they are merged."""

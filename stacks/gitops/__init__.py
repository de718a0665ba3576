"""The `gitops` commands: what a pull request is checked by."""

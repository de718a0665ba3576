"""The `gitops` commands: pull requests, proposed and checked."""

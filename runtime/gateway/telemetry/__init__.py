"""The gateway's metrics, log and traces for operators."""

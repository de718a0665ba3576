"""Run plans on SGLang and vLLM: command lines, ports and probes."""

"""Run plans on other engines (SGLang, vLLM): their command lines, ports and probes."""

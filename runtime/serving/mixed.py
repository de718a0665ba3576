"""The work of a rank in a mixed unit: requests stay from prompt to end, and a step mixes prompts with decoding."""

from runtime.protocol.messages import Prefill
from runtime.serving.step_loop import PhaseRunner

__all__ = ["MixedPhase"]


class MixedPhase(PhaseRunner[Prefill]):
    """The phase in which requests come from the gateway and stay until they are complete."""

    def arrive(self, message: Prefill) -> None:
        """Queue a prompt from the gateway."""
        self._accept_prompt(message)

"""What a rank of a mixed unit does: requests stay from prompt to end, chunks of some beside the tokens of others."""

from runtime.messages import Abort, FromGateway, Prefill
from runtime.phase import Phase
from runtime.request import Request

__all__ = ["MixedPhase"]


class MixedPhase(Phase):
    """Requests come from the gateway and stay to their ends."""

    def take(self, message: FromGateway) -> None:
        """A request comes, or is no longer wanted."""
        match message:
            case Prefill(request_id, prompt_ids, sampling):
                self._add(Request(request_id, prompt_ids, sampling))
            case Abort(request_id):
                self._scheduler.abort(request_id)
